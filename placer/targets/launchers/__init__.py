"""Files that start a plan: plan --hosts--> nodes in the order of its ranks --a launcher--> files, one module each."""

"""Where a rank's weights come from, which part it holds, and how they leave."""

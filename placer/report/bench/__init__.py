"""What benches measured, as tables: plans beside hand-written torch, ways to train data-parallel side by side."""

"""The application's training: recipes, the loop, checkpoints, one process or many."""

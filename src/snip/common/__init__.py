"""What every room may use: errors, files, the cache folder, progress, the console."""

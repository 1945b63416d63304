"""What the project draws and checks with a browser; nothing here is installed."""

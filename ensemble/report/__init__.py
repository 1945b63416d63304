"""What a finished run says of itself."""

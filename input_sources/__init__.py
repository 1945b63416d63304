"""Where data come from: the user's own files and arrays, and sets of TensorFlow Datasets."""

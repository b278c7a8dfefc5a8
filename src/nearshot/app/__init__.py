"""`nearshot app`: a local page to sort photos by a few labelled ones."""

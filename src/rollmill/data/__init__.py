"""Files of rows: looked at, made ready for training, fetched and given away."""

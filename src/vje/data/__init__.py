"""From files and arrays to batches of uint8 pixels: sources, splits, resident and streamed data, augmentation."""

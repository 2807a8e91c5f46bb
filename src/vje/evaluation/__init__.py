"""What a trained model is worth: features, k-NN, posterior statistics, effective rank."""

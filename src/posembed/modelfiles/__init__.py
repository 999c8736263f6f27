"""The files of models on disk and on the Hugging Face Hub: opening, checking and copying them."""

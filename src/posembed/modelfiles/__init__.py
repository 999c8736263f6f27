"""The files of models on disk and on the Hugging Face Hub: what is read, what is refused, how a copy is written."""

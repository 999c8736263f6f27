"""Problems of any size with one right answer: trained on small ones, tested on larger ones."""

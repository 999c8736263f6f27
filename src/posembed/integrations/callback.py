from transformers import TrainerCallback
class TableCallback(TrainerCallback): pass

def print_inits(summary):
    print(summary)

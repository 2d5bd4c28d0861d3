def play(out, keep, posts):
    return False

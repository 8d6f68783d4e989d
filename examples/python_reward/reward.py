"""A reward in TRL's signature: a list with one number (or None: says nothing) for each completion.

Besides prompts and completions, the parameters that a function names are passed: fields of the data row, ground_truth, ...
"""


def close(completions, ground_truth, **columns):
    """1 for the right number, up to 0.5 for one that is near, 0 for no number."""
    scores = []
    for completion, truth in zip(completions, ground_truth):
        try:
            distance = abs(int(completion.strip()) - int(truth))
        except ValueError:
            scores.append(0.0)
        else:
            scores.append(1.0 if distance == 0 else 0.5 / (1 + distance))
    return scores

"""The drift gate: is the candidate as good as the baseline on the same utterances?

`normalise` makes texts comparable, `score` counts, `sqnr` compares logits, `gate` decides, `report` shows.
Knows nothing of engines or audio: whoever calls the gate hands in functions that transcribe.
"""

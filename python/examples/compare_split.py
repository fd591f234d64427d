"""Compares the logits of a model that is divided over all ranks with those of the same model whole on each rank.

    mpirun -np 2 python3 compare_split.py MODEL.gguf ["a text"]

The weights are the same; sums over members are added in another order, so the last bits differ. Prints the distance of
each token's logits and whether the best token is the same. Ends with status 1 if a best token differs.
"""
import sys

import sheaf

TEXT = "In the beginning God created the heaven and the earth."


def best(row):
    return max(range(len(row)), key=row.__getitem__)


def distance(a, b):
    """Mean square of the difference, in terms of that of b."""
    return sum((float(x) - float(y)) ** 2 for x, y in zip(a, b)) / sum(float(y) ** 2 for y in b)


def logits_of(path, text, **how):
    with sheaf.Model(path, n_ctx=256, **how) as model:
        tokens = model.encode(text)[:model.n_batch]
        members, cuts = model.plan()
        rows = model.eval(tokens, logits=[True] * len(tokens))
        if sheaf.rank() == 0:
            print("%d members: %s" % (len(members), ", ".join("%s %.2f" % m for m in members)))
            print("  " + cuts)
            print("  %d tokens, %d x %d logits, %s" % (len(tokens), len(rows), model.n_vocab, model.stats()))
        return tokens, [list(map(float, row)) for row in rows]


def main():
    path, text = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else TEXT
    sheaf.init()
    own = [d.name for d in sheaf.devices() if d.rank == 0]
    tokens, divided = logits_of(path, text)
    _, whole = logits_of(path, text, devices=own[0])  # rank 0's first device has it all
    wrong = 0
    for i, (a, b) in enumerate(zip(divided, whole)):
        same = best(a) == best(b)
        wrong += not same
        if sheaf.rank() == 0:
            print("token %3d %6d  distance %.2e  best %6d %s" % (i, tokens[i], distance(a, b), best(a),
                                                                 "the same" if same else "not %d" % best(b)))
    return 0 if sheaf.finalize() and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())

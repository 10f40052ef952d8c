"""Golden numbers of the Bayesian correlated t-test, made with baycomp 1.0.3 (the program of the test's authors).

    pip install baycomp==1.0.3
    python tests/golden/correlated_t.py > tests/golden/correlated_t.json

baycomp's left is "x is larger", so A goes there as x: p_left is p(A better). It takes k-fold cross-validation
repeated `runs` times, which is rho = runs / n.
"""

import json


def main() -> None:
    import numpy as np
    from baycomp import CorrelatedTTest

    draw = np.random.Generator(np.random.PCG64(7))
    cases = []
    for n, runs in ((3, 1), (5, 1), (10, 1), (10, 2), (12, 1), (30, 3)):
        for gap, spread in ((0.0, 0.02), (0.01, 0.01), (-0.03, 0.015), (0.2, 0.005)):
            a = (0.8 + gap + spread * draw.standard_normal(n)).round(6)
            b = (0.8 + spread * draw.standard_normal(n)).round(6)
            for rope in (0.0, 0.01, 0.05):
                found = [float(p) for p in CorrelatedTTest.probs(a, b, rope=rope, runs=runs)]
                p_a, p_equal, p_b = found if rope else (found[0], 0.0, found[1])
                cases.append(
                    {"a": a.tolist(), "b": b.tolist(), "rope": rope, "rho": runs / n, "p": [p_a, p_equal, p_b]}
                )
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")


if __name__ == "__main__":
    main()

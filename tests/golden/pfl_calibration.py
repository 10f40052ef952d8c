"""Noise multipliers that pfl-research calibrates for its CIFAR-10 benchmark, made with pfl 0.6.0.

    pip install pfl==0.6.0
    python tests/golden/pfl_calibration.py > tests/golden/pfl_calibration.json

(epsilon 2, delta 1e-6, population 1e6, cohort 1,000, 1,500 rounds.) What pfl assumes: Poisson sampling at cohort /
population with the default neighbours of each library (add or remove one), although its simulation draws users with
replacement; its PRV accountant takes the estimate, not the upper bound, and allows it an error of 0.07 in epsilon.
Its search stops when DELTA is met within 0.1 %, from either side, so its noise may be a hair too small.

`laplace` shows what pfl 0.6.0 does with `mechanism="laplace"`: a scale of 50 becomes an epsilon per round of 50 under
PRV (its `mu` is the inverse of the scale), and RDP and PRV leave the sampling out.
"""

import json


def main() -> None:
    from importlib.metadata import version

    from pfl.privacy.privacy_accountant import PLDPrivacyAccountant, PRVPrivacyAccountant, RDPPrivacyAccountant

    kinds = {"pld": PLDPrivacyAccountant, "prv": PRVPrivacyAccountant, "rdp": RDPPrivacyAccountant}
    setting = {"num_compositions": 1500, "sampling_probability": 1e3 / 1e6, "mechanism": "gaussian"}
    found = {"epsilon": 2.0, "delta": 1e-6, "population": 1_000_000, "cohort": 1000, "rounds": 1500}
    noise = {k: float(kind(**setting, epsilon=2.0, delta=1e-6).noise_parameter) for k, kind in kinds.items()}
    spent = {k: float(kind(**setting, noise_parameter=0.6, delta=1e-6).epsilon) for k, kind in kinds.items()}
    scale = {"num_compositions": 30, "sampling_probability": 0.01, "mechanism": "laplace"}
    laplace = {k: float(kind(**scale, noise_parameter=50.0, delta=1e-6).epsilon) for k, kind in kinds.items()}
    versions = {p: version(p) for p in ("pfl", "dp-accounting", "prv-accountant")}
    whole = {**found, "noise": noise, "epsilon_at_noise_0.6": spent, "laplace": laplace, "made_with": versions}
    print(json.dumps(whole, indent=1))


if __name__ == "__main__":
    main()

"""What updates leak: attacks on clients' own updates, all victims as one stack.

victims.py             whom: groups of clients       observe.py             what is seen: the run's own updates
simulate.py            a client's program, unrolled  pixels.py              the range of inputs, and dummies
first_layer.py         FC: rows of dW over db        labels.py              the sign rule, and counts of classes
recipes.py             DLG, iDLG, inverting, ...     matching.py            how far updates are apart
batch_norm.py          statistics of a batch         assumed_task.py        labels that can be looked for
descent.py             Adam and L-BFGS, stacked      reconstruct.py         a recipe, followed
property_inference.py  shadow clients                similarity.py          what a reconstruction is worth
few_examples.py        clients with few examples     one_attack.py          one attack, from one to the other
defences.py            what lowers it                written.py             attack.json, pictures, a page
"""

from atoll.attacks.leakage.defences import Defended, compare_defences, defence_table, usual_defences, write_defences
from atoll.attacks.leakage.one_attack import METHODS, AttackOptions, Finding, attack, opened
from atoll.attacks.leakage.recipes import RECIPES, InversionRecipe
from atoll.attacks.leakage.written import facts, knowledge, lead, write_finding

__all__ = [
    "METHODS",
    "RECIPES",
    "AttackOptions",
    "Defended",
    "Finding",
    "InversionRecipe",
    "attack",
    "compare_defences",
    "defence_table",
    "facts",
    "knowledge",
    "lead",
    "opened",
    "usual_defences",
    "write_defences",
    "write_finding",
]

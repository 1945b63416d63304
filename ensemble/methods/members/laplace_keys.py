"""The keys of Laplace approximations: whose members, which covariance, and how they predict."""

from ensemble.keys import POSITIVE, Block, Key, Rule, one_of
from ensemble.methods.common_keys import INIT_FROM
from ensemble.methods.members import sgd_keys
from ensemble.methods.members.engine_keys import KEYS

LAST_LAYER = ("last_layer", "last_layer_kronecker")
STRUCTURES = (*LAST_LAYER, "diagonal", "kronecker", "low_rank")
OF_A_RUN = "must be the workdir of a run, whose members are trained"
MARGINAL, VALIDATION = "marginal_likelihood", "validation"


def _is_precision(text: str) -> bool:
    try:
        return text in (MARGINAL, VALIDATION) or 0 < float(text) < 1e12
    except ValueError:
        return False


BLOCK = Block(
    {
        "ensemble_size": sgd_keys.BLOCK.keys["ensemble_size"],
        "init_from": INIT_FROM,
        "batch_size": KEYS["batch_size"],
        "class_weights": KEYS["class_weights"],
        "correct_class_weights": KEYS["correct_class_weights"],
        "dtype": sgd_keys.BLOCK.keys["dtype"],
        "laplace.structure": Key(
            "last_layer_kronecker",
            "which covariance: of the last layer alone, all or by a Kronecker product; of all "
            "layers a diagonal, Kronecker products, or of low rank",
            one_of(*STRUCTURES),
        ),
        "laplace.rank": Key(20, "directions of low_rank", POSITIVE),
        "laplace.prior_precision": Key(
            VALIDATION,
            "1 / variance of the prior, for each member by itself",
            Rule(_is_precision, f"must be {MARGINAL}, {VALIDATION}, or a positive number"),
        ),
        "laplace.predictive": Key(
            "closed",
            "closed: by the variances of the outputs, one prediction a member; draws: by draws of "
            "the outputs, each an estimator",
            one_of("closed", "draws"),
        ),
        "laplace.num_draws": Key(
            20,
            "draws that predict",
            Rule(lambda value: 2 <= value <= 10000, "must be from 2 to 10000"),
        ),
    },
    rules={"init_from": f"{INIT_FROM.rule.text}; here it {OF_A_RUN}"},
    instead={
        "num_epochs": "the members are trained already, and their data are passed over once",
        "num_chains": "config.ensemble_size says how many members",
    },
)

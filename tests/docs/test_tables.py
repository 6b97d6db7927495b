"""What tables say of keys, defaults, messages and other libraries' names is what the code says."""

import ast
import re
from functools import cache
from typing import Any

import pytest
import yaml

from uniarena import registry
from uniarena.buffers.her import HindsightConfig
from uniarena.config import ConfigError, describe, load
from uniarena.config.schema import SECTIONS
from uniarena.config.section import find
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.learners.on_policy.presets import A2CConfig, APPOConfig, IMPALAConfig, TRPOConfig
from uniarena.nets.encoders import EncoderConfig
from uniarena.optim import OptimizerConfig, ScheduleConfig
from uniarena.policies.policy import PolicyConfig

from .pages import PAGES, ROOT, codes, rows, spans

DOCS = ROOT / "docs"
FREQUENCIES = {
    f"{name}_{unit}" for name in ("log", "save", "eval") for unit in ("every_env_steps", "interval")
}


def undocumented(config: Any, page: str) -> list[str]:
    """Keys of a config that no code span of a page names."""
    words = {word for span in spans(DOCS / page) for word in re.findall(r"\w+", span)}
    return [field.name for field in describe(config) if field.name not in words]


@pytest.mark.parametrize(
    ("page", "config"),
    [
        ("learners.md", PolicyGradientConfig),
        ("agents.md", PolicyConfig),
        *[("agents.md", registry.lookup("bonus", name).Config) for name in registry.BUILT_IN["bonus"]],
        *[
            ("learners.md", registry.lookup("regularizer", n).Config)
            for n in registry.BUILT_IN["regularizer"]
        ],
        ("agents.md", EncoderConfig),
        *[("memory.md", registry.lookup("memory", n).Config) for n in registry.BUILT_IN["memory"]],
        *[("replay.md", registry.lookup("buffer", n).Config) for n in ("replay", "prioritized", "sequence")],
        *[("offline.md", registry.lookup("buffer", n).Config) for n in ("dataset", "dataset_sequence")],
        ("replay.md", HindsightConfig),
        *[
            ("configuration.md", config)
            for config in SECTIONS.values()
            if hasattr(config, "__dataclass_fields__")
        ],
        *[
            ("environments.md", registry.lookup("wrapper", name).Config)
            for name in registry.BUILT_IN["wrapper"]
        ],
        *[
            ("sampling-and-training.md", registry.lookup("callback", n).Config)
            for n in registry.BUILT_IN["callback"]
        ],
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_key_is_on_its_page(page: str, config: Any):
    assert set(undocumented(config, page)) - FREQUENCIES == set()


def test_frequencies_are_on_the_page_that_the_configuration_leads_to():
    assert FREQUENCIES & set(undocumented(SECTIONS["training"], "sampling-and-training.md")) == set()


@pytest.mark.parametrize("kind", sorted(registry.KINDS))
def test_every_registered_name_is_named_somewhere(kind: str):
    words = {word for page in PAGES for span in spans(page) for word in re.findall(r"\w+", span)}
    assert set(registry.BUILT_IN[kind]) - words == set()


def value(cell: str) -> Any:
    """A default as the tables write it."""
    text = cell.strip("`").replace("whole rollout", "")
    found = yaml.safe_load(text) if text else None
    return float(found) if isinstance(found, str) and re.fullmatch(r"[\d.]+e-?\d+", found) else found


@pytest.mark.parametrize(("column", "config"), [(1, PolicyGradientConfig), (2, A2CConfig)])
def test_the_defaults_of_the_presets_are_those_of_the_code(column: int, config: Any):
    table = {
        codes(cells[0])[0]: value(f"[{cells[column]}]" if ", " in cells[column] else cells[column])
        for cells in rows(DOCS / "learners.md", "One policy gradient")
    }
    code = {field.name: field.default for field in describe(config)}
    code["optimizer"] = code["optimizer"].type
    assert {key: tuple(map(float, v)) if isinstance(v, list) else v for key, v in table.items()} == code


@pytest.mark.parametrize("config", [OptimizerConfig, ScheduleConfig])
def test_every_key_of_optimisers_and_schedules_is_on_one_of_two_pages(config: Any):
    pages = [set(undocumented(config, page)) for page in ("learners.md", "stability.md")]
    assert pages[0] & pages[1] == set()


def test_the_defaults_of_optimisers_are_those_of_the_code():
    table = {codes(cells[0])[0]: value(cells[1]) for cells in rows(DOCS / "stability.md", "Gradients and")}
    code = {field.name: field.default for field in describe(OptimizerConfig)} | {"rho": 0.05, "base": "adam"}
    assert table == {key: code[key] for key in table} and len(table) == 9


def test_the_defaults_of_trpo_are_what_its_sentence_says():
    assert (TRPOConfig().policy_step, TRPOConfig().target_kl, TRPOConfig().clip) == ("natural", 0.01, "none")
    changed = {f.name for f in describe(TRPOConfig) if f.default != getattr(PolicyGradientConfig(), f.name)}
    assert changed == {"policy_step", "target_kl", "clip", "learning_rate", "batch_size", "max_grad_norm"}


@pytest.mark.parametrize(("name", "config"), [("impala", IMPALAConfig), ("appo", APPOConfig)])
def test_the_defaults_of_what_corrects_for_lag_are_what_its_lines_say(name: str, config: Any):
    text = (DOCS / "learners.md").read_text(encoding="utf-8")
    said = re.search(rf"^- `{name}` \(.*?(?=\n\n|\n- )", text, re.M | re.S)
    assert said is not None
    pairs = {key: value(text) for key, text in re.findall(r"`(\w+): ([\w.-]+)`", said.group())}
    code = {field.name: field.default for field in describe(config)}
    assert pairs == {key: code[key] for key in pairs}
    changed = {key for key, default in code.items() if default != getattr(PolicyGradientConfig(), key)}
    in_words = {"advantage", "n_epochs", "optimizer", "normalize_advantage", "batch_size", "gae_lambda"}
    assert set(pairs) - in_words == changed - in_words


@pytest.mark.parametrize(("column", "name"), [(1, "dqn"), (2, "sac"), (3, "td3")])
def test_the_off_policy_defaults_are_those_of_the_code(column: int, name: str):
    cells = {
        codes(row[0])[0]: row[column]
        for row in rows(DOCS / "learners.md", "Keys off-policy")
        if len(row) == 5
    }
    code = {field.name: field.default for field in describe(registry.lookup("learner", name).Config)}
    code["optimizer"] = code["optimizer"].type
    table = {key: value(f"[{cell}]" if ", " in cell else cell) for key, cell in cells.items() if cell != "–"}
    assert {key: tuple(map(float, v)) if isinstance(v, list) else v for key, v in table.items()} == code


FROM_DATA = ("bc", "iql", "bcq", "discrete_bcq", "decision_transformer")


@pytest.mark.parametrize(("column", "name"), list(enumerate(FROM_DATA, 1)))
def test_the_defaults_of_learners_from_data_are_those_of_the_code(column: int, name: str):
    cells = {
        codes(row[0])[0]: row[column] for row in rows(DOCS / "learners.md", "Keys of learners from data")
    }
    code = {field.name: field.default for field in describe(registry.lookup("learner", name).Config)}
    code["optimizer"] = code["optimizer"].type
    table = {key: value(f"[{cell}]" if ", " in cell else cell) for key, cell in cells.items() if cell != "–"}
    assert {key: tuple(map(float, v)) if isinstance(v, list) else v for key, v in table.items()} == code


@cache
def literals() -> list[str]:
    files = (ROOT / "src" / "uniarena").rglob("*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@pytest.mark.parametrize("part", [part for cells in rows(DOCS / "errors.md") for part in codes(cells[0])])
def test_every_message_that_is_explained_is_given_somewhere(part: str):
    assert any(part in text for text in literals())


# -- names of other libraries ------------------------------------------------------------------------------------
BASE: dict[str, Any] = {"environment": {"id": "CartPole-v1"}, "learner": {"type": "ppo"}}
VALUES = {
    "normalize_advantage": True,
    "hidden_sizes": [32],
    "orthogonal": False,
    "gsde": True,
    "share_encoder": True,
}


def theirs(cells: list[str]) -> list[str]:
    """Plain keys in the columns of other libraries; what is converted or quoted in full is not one."""
    return [name for cell in cells for name in codes(cell) if re.fullmatch(r"[a-z_]+", name)]


PPO = [
    (codes(cells[0])[0], name)
    for cells in rows(DOCS / "coming-from.md", "Hyper-parameters of PPO")
    if codes(cells[0]) and not codes(cells[0])[0].startswith("optimizer")
    for name in theirs([cell for cell in cells[1:4] if "is `" not in cell])
]


@pytest.mark.parametrize(("ours", "spelling"), PPO)
def test_their_hyper_parameters_load_as_ours(ours: str, spelling: str):
    given = VALUES.get(ours, 0.5 if ours in ("gamma", "gae_lambda") else 4)
    loaded = load({**BASE, "learner": {"type": "ppo", spelling: given}})
    assert loaded.learner[ours] == given


OFF_POLICY = [
    (codes(cells[0])[0], name)
    for cells in rows(DOCS / "coming-from.md", "Hyper-parameters off-policy")
    if "." in codes(cells[0])[0]
    for name in theirs(cells[1:])
]


@pytest.mark.parametrize(("ours", "spelling"), OFF_POLICY)
def test_their_off_policy_hyper_parameters_load_as_ours(ours: str, spelling: str):
    loaded = load({**BASE, "learner": {"type": "td3", spelling: 4}})
    assert find(loaded.source, ours)[0] == 4


ANSWERED = [
    name
    for cells in rows(DOCS / "coming-from.md", "Hyper-parameters off-policy")
    if "." not in codes(cells[0])[0]
    for name in re.findall(r"[a-z]\w*", codes(cells[0])[0])
    if "_" in name or name in ("polyak", "autotune")
]


@pytest.mark.parametrize("spelling", sorted(set(ANSWERED) - {"n_steps"}))
def test_what_has_two_meanings_is_answered(spelling: str):
    with pytest.raises(ConfigError, match="is not a key here"):
        load({**BASE, "learner": {"type": "sac", spelling: 4}})


NETWORK = [
    (codes(cells[0])[0], name)
    for cells in rows(DOCS / "coming-from.md", "Networks")
    if len(codes(cells[0])) == 1 and re.fullmatch(r"\w+", codes(cells[0])[0])
    for name in theirs([cell.replace("policy_kwargs.", "") for cell in cells[1:]])
]


@pytest.mark.parametrize(("ours", "spelling"), NETWORK)
def test_their_network_keys_load_as_ours(ours: str, spelling: str):
    given = VALUES.get(ours, "relu" if ours == "activation" else 0)
    loaded = load({**BASE, "agent": {"policy": {spelling: given}}})
    assert loaded.agent.policy[ours] == given


@pytest.mark.parametrize(
    ("section", "theirs", "path", "ours"),
    [
        ("policy", "MlpPolicy", "agent.policy.network", "mlp"),
        ("policy", "MultiInputPolicy", "agent.policy.network", "mlp"),
        ("policy", "CnnPolicy", "agent.policy.network", "nature_cnn"),
        ("vectorization", "DummyVecEnv", "environment.vectorization", "serial"),
        ("vectorization", "SyncVectorEnv", "environment.vectorization", "sync"),
        ("vectorization", "SubprocVecEnv", "environment.vectorization", "async"),
        ("vectorization", "AsyncVectorEnv", "environment.vectorization", "async"),
    ],
)
def test_their_values_load_as_ours(section: str, theirs: str, path: str, ours: str):
    piece = {"agent": {"policy": theirs}} if section == "policy" else {"environment": {section: theirs}}
    found: Any = load([BASE, piece])
    for name in path.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == ours


@pytest.mark.parametrize(
    ("kind", "theirs", "ours"),
    [
        ("wrapper", "VecNormalize", ["normalize_observation", "normalize_reward"]),
        ("wrapper", "VecFrameStack", ["frame_stack"]),
        ("wrapper", "FrameStackObservation", ["frame_stack"]),
        ("wrapper", "RecordVideo", ["record_video"]),
        ("wrapper", "VecMonitor", []),
        ("wrapper", "Monitor", []),
        ("wrapper", "RecordEpisodeStatistics", []),
        ("callback", "EvalCallback", ["evaluate"]),
        ("callback", "CheckpointCallback", ["checkpoint"]),
        ("callback", "ProgressBarCallback", ["progress"]),
        ("callback", "VecVideoRecorder", ["video"]),
    ],
)
def test_their_classes_load_as_ours(kind: str, theirs: str, ours: list[str]):
    piece = {"environment": {"wrappers": [theirs]}} if kind == "wrapper" else {"callbacks": [theirs]}
    loaded = load([BASE, piece])
    sections = loaded.environment.wrappers if kind == "wrapper" else loaded.callbacks
    assert [section["type"] for section in sections] == ours
    text = (DOCS / "coming-from.md").read_text(encoding="utf-8")
    assert f"`{theirs}`" in text and all(f"`{name}`" in text for name in ours)

"""LoRA adapters: only they are trained, sent and saved; they go on from their folder, once; merging them changes no answer."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

import policies.checkpoints.hub  # noqa: F401  registers the classes
from embodied import evaluate, export, train
from embodied.learning import optimizers, weights
from embodied.runs import checkpoint
from policies.checkpoints import lora
from policies.checkpoints.fresh import create_checkpoint
from policies.checkpoints.loading import CheckpointError
from policies.openvla_oft import OpenVLAOFT
from tests.end_to_end.runs import assert_equal_to_the_bit, trained

TINY = Path(__file__).parents[1] / "fixtures" / "openvla_tiny"
STATISTICS = {"toy": {"action": {"q01": [-1.0] * 7, "q99": [1.0] * 7, "mask": [True] * 6 + [False]}}}
SMALL = {"image": 32, "patch": 16, "vision_width": 16, "hidden": 32, "layers": 2, "mlp": 48}


def adapted(checkpoint=TINY, **settings):
    return OpenVLAOFT.from_pretrained(checkpoint, lora={"rank": 4}, **settings)


def moved(policy):
    """The policy with adapters that do something."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(0.0, 0.02, generator=generator)
    return policy


@torch.no_grad()
def logits(policy):
    generator = torch.Generator().manual_seed(0)
    return policy.action_logits(torch.randn(2, 6, 56, 56, generator=generator), torch.tensor([[1, 5, 6, 29871]] * 2))


@pytest.fixture(scope="module")
def base():
    return OpenVLAOFT.from_pretrained(TINY)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(a policy whose adapters do something, the folder it was saved in)."""
    policy, folder = moved(adapted(value_head=True)), tmp_path_factory.mktemp("adapters")
    policy.save_pretrained(folder)
    return policy, folder


def test_adapters_that_begin_change_no_logit(base):
    assert torch.equal(logits(adapted()), logits(base))


def test_every_linear_layer_of_towers_projector_and_language_model_has_one_and_no_head_has():
    policy = adapted(value_head=True)
    found = {name.split(".lora_A")[0] for name, _ in policy.named_parameters() if ".lora_A." in name}
    # 3 blocks x 4 + 4 blocks x 4 + attention pool 5 + projector 3 + 2 layers x 7
    assert len(found) == 12 + 16 + 5 + 3 + 14
    assert not any("head" in name for name in found)


def test_what_travels_to_the_samplers_is_adapters_and_heads_alone():
    policy = adapted(value_head=True)
    names = [entry.name for bucket in weights.export(policy, 0) for entry in bucket.entries]
    assert all(".lora_" in name or name.startswith("value_head.") for name in names)
    assert len(names) == 2 * 50 + 4


def test_adapters_are_float32_on_a_base_of_bfloat16():
    policy = adapted(dtype="bfloat16")
    assert {parameter.dtype for parameter in policy.parameters() if parameter.requires_grad} == {torch.float32}
    assert policy.projector.fc1.base_layer.weight.dtype == torch.bfloat16


def test_two_processes_begin_with_the_same_adapters_and_torchs_random_state_is_left_alone():
    before = torch.get_rng_state()
    first, second = adapted(), adapted()
    assert torch.equal(before, torch.get_rng_state())
    assert_equal_to_the_bit(first.state_dict(), second.state_dict())


def test_alpha_is_the_rank_and_16_at_most_unless_it_is_given():
    assert [lora.settings({"rank": rank}).scale for rank in (4, 32)] == [1.0, 0.5]
    assert lora.settings({"rank": 32, "alpha": 64}).scale == 2.0


def test_a_layer_gives_its_own_output_and_the_scaled_adapters():
    policy = moved(OpenVLAOFT.from_pretrained(TINY, lora={"rank": 2, "alpha": 6}))
    layer, rows = policy.projector.fc3, torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    wanted = layer.base_layer(rows) + 3.0 * rows @ layer.lora_A["default"].weight.T @ layer.lora_B["default"].weight.T  # 6 / 2
    torch.testing.assert_close(layer(rows), wanted)


def test_chosen_targets_are_ends_of_names():
    policy = OpenVLAOFT.from_pretrained(TINY, lora={"rank": 2, "targets": ["q_proj", "attn.proj"]})
    found = [name.split(".lora_A")[0] for name, _ in policy.named_parameters() if ".lora_A." in name]
    assert len(found) == 2 + 7 and all(name.endswith((".q_proj", ".attn.proj")) for name in found)


def test_targets_that_name_nothing_are_named_with_what_there_is():
    with pytest.raises(ValueError, match=r"query, lm_head.*gate_proj.*qkv"):
        OpenVLAOFT.from_pretrained(TINY, lora={"rank": 2, "targets": ["q_proj", "query", "lm_head"]})


@pytest.mark.parametrize(
    ("given", "named"),
    [({"rank": -1}, "lora.rank"), ({"rank": 2.5}, "lora.rank"), ({"rank": 2, "alpha": 0}, "lora.alpha"), ({"rank": 2, "dropout": 1.0}, "lora.dropout"),
     ({"rank": 2, "targets": "q_proj"}, "lora.targets"), ({"rank": 2, "r": 3}, "found r")],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused_by_name(given, named):
    with pytest.raises(ValueError, match=named):
        OpenVLAOFT.from_pretrained(TINY, lora=given)


def test_dropout_is_for_learning_alone():
    policy = moved(OpenVLAOFT.from_pretrained(TINY, lora={"rank": 4, "dropout": 0.5}))
    plain = moved(OpenVLAOFT.from_pretrained(TINY, lora={"rank": 4}))
    assert torch.equal(logits(policy), logits(plain))
    inputs = torch.randn(2, 6, 56, 56), torch.tensor([[1, 5, 6, 29871]] * 2)
    assert not torch.equal(policy.action_logits(*inputs), plain.action_logits(*inputs))


def test_a_copy_for_the_kl_reference_answers_the_same_and_stays_as_it_is(saved):
    policy = adapted()
    frozen = copy.deepcopy(policy).requires_grad_(False)
    before = logits(frozen)
    moved(policy)
    assert torch.equal(logits(frozen), before) and not torch.equal(logits(policy), before)


def test_muon_takes_the_adapters_and_leaves_the_heads_to_adamw():
    policy = adapted(value_head=True)
    optimizer = optimizers.build_optimizer(policy, optimizer="muon")
    taken = {id(parameter) for group in optimizer.parts["muon"].param_groups for parameter in group["params"]}
    assert taken == {id(parameter) for name, parameter in policy.named_parameters() if ".lora_" in name}


def test_a_folder_holds_no_base_weights_and_peft_names(saved):
    _, folder = saved
    assert not list(folder.glob("*.safetensors"))
    names = load_file(folder / "lora_adapter" / "adapter_model.safetensors").keys()
    assert "base_model.model.language_model.model.layers.0.self_attn.q_proj.lora_A.weight" in names
    assert len(names) == 2 * 50 and all(".lora_A.weight" in name or ".lora_B.weight" in name for name in names)
    assert json.loads((folder / "lora_adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(TINY)


def test_a_folder_loads_to_the_same_bits_and_goes_on_with_the_same_adapters(saved):
    policy, folder = saved
    again = OpenVLAOFT.from_pretrained(folder, value_head=True)
    assert_equal_to_the_bit(dict(weights.trainable(again)), dict(weights.trainable(policy)))
    assert torch.equal(logits(again), logits(policy))


def test_a_folder_saved_again_is_the_same_files(saved, tmp_path):
    _, folder = saved
    OpenVLAOFT.from_pretrained(folder, value_head=True).save_pretrained(tmp_path)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()) == files
    assert all((folder / file).read_bytes() == (tmp_path / file).read_bytes() for file in files)


def test_other_settings_than_the_folders_are_refused(saved):
    with pytest.raises(ValueError, match="rank=8.*rank=4"):
        OpenVLAOFT.from_pretrained(saved[1], lora={"rank": 8})


def test_other_targets_than_the_folders_are_refused(saved):
    with pytest.raises(ValueError, match="lora.targets: found q_proj.*differs by 48 layers"):
        OpenVLAOFT.from_pretrained(saved[1], lora={"rank": 4, "targets": ["q_proj"]})


def elsewhere(folder, to):
    """A copy whose base lies where nothing is."""
    shutil.copytree(folder, to)
    config = json.loads((to / "lora_adapter" / "adapter_config.json").read_text())
    (to / "lora_adapter" / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "/nowhere/base"}))
    return to


def test_a_base_that_is_not_there_is_named_with_the_way_out(saved, tmp_path):
    with pytest.raises(CheckpointError, match="/nowhere/base.*policy.base=FOLDER"):
        OpenVLAOFT.from_pretrained(elsewhere(saved[1], tmp_path / "copy"))


def test_a_base_that_is_given_takes_its_place(saved, tmp_path):
    policy, folder = saved
    assert torch.equal(logits(OpenVLAOFT.from_pretrained(elsewhere(folder, tmp_path / "copy"), base=TINY)), logits(policy))


def test_a_base_beside_whole_weights_is_refused():
    with pytest.raises(CheckpointError, match="policy.base"):
        OpenVLAOFT.from_pretrained(TINY, base=TINY)


def test_a_base_of_another_size_names_the_tensors(saved, tmp_path):
    other = create_checkpoint(tmp_path, ["push"], STATISTICS, sizes=SMALL)
    with pytest.raises(CheckpointError, match="misshapen"):
        OpenVLAOFT.from_pretrained(saved[1], base=other)


@pytest.fixture
def rebased(saved, tmp_path):
    """(a copy of the folder of adapters, the copy of the base that it names); the base may be changed."""
    shutil.copytree(TINY, tmp_path / "base")
    folder = elsewhere(saved[1], tmp_path / "copy")
    file = folder / "lora_adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": str(tmp_path / "base")}))
    return folder, tmp_path / "base"


def change_one_tensor(base):
    tensors = load_file(base / "model.safetensors")
    tensors["projector.fc2.weight"] = tensors["projector.fc2.weight"].flip(0)
    save_file(tensors, base / "model.safetensors")


def test_a_base_that_has_changed_since_is_refused_with_the_way_out(rebased):
    folder, base = rebased
    change_one_tensor(base)
    with pytest.raises(CheckpointError, match="other weights in the base.*policy.base=FOLDER"):
        OpenVLAOFT.from_pretrained(folder)


def test_adapters_whose_base_has_changed_are_not_exported(rebased, tmp_path, capsys):
    folder, base = rebased
    change_one_tensor(base)
    assert export.main([f"checkpoint={folder}", f"out={tmp_path / 'plain'}"]) == 1
    assert "other weights in the base" in capsys.readouterr().err and not (tmp_path / "plain").exists()


def test_the_same_base_in_shards_is_the_same(rebased):
    folder, base = rebased
    AutoModelForImageTextToText.from_pretrained(base).save_pretrained(base, max_shard_size="1MB")
    assert lora.attached(OpenVLAOFT.from_pretrained(folder))


def test_adapters_that_name_no_fingerprint_load_as_before(rebased):
    folder, base = rebased
    change_one_tensor(base)
    (folder / "lora_adapter" / "base.json").unlink()
    assert lora.attached(OpenVLAOFT.from_pretrained(folder))


@pytest.mark.parametrize("link", [False, True], ids=["the folder", "a link to it"])
def test_adapters_are_not_saved_in_place_of_their_base(tmp_path, link):
    base = tmp_path / "base"
    shutil.copytree(TINY, base)
    policy = adapted(base)
    if link:
        (tmp_path / "link").symlink_to(base)
    with pytest.raises(CheckpointError, match="found the base of these adapters"):
        policy.save_pretrained(tmp_path / "link" if link else base)
    assert (base / "model.safetensors").read_bytes() == (TINY / "model.safetensors").read_bytes()


def test_adapters_may_be_saved_over_themselves(rebased):
    folder, _ = rebased
    OpenVLAOFT.from_pretrained(folder, value_head=True).save_pretrained(folder)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    OpenVLAOFT.from_pretrained(folder, value_head=True).save_pretrained(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_whole_weights_saved_over_adapters_leave_none(rebased, base, capsys):
    folder, _ = rebased
    base.save_pretrained(folder)
    again = OpenVLAOFT.from_pretrained(folder)
    assert not lora.attached(again) and "not applied again" not in capsys.readouterr().out
    assert torch.equal(logits(again), logits(base))


def test_adapters_saved_over_a_policy_with_other_parts_come_back(saved, tmp_path):
    other = create_checkpoint(tmp_path / "l1", ["push"], STATISTICS, sizes={**SMALL, "head": "l1"})
    saved[0].save_pretrained(other)
    assert_equal_to_the_bit(OpenVLAOFT.from_pretrained(other, value_head=True).state_dict(), saved[0].state_dict())


def test_a_rank_above_a_layers_smaller_side_is_refused_with_the_layer():
    with pytest.raises(ValueError, match=r"lora.rank: found 100000, wanted at most 32, the smaller side of \S+;"):
        OpenVLAOFT.from_pretrained(TINY, lora={"rank": 100_000})


def test_adapters_beside_whole_weights_are_in_them_already(saved, tmp_path, capsys, base):
    # as published OFT folders are: the weights of TINY stand for merged ones
    shutil.copytree(saved[1], tmp_path / "both")
    shutil.copy(TINY / "model.safetensors", tmp_path / "both")
    found = OpenVLAOFT.from_pretrained(tmp_path / "both")
    assert torch.equal(logits(found), logits(base)) and not lora.attached(found)
    assert "not applied again" in capsys.readouterr().out


@pytest.mark.parametrize(("key", "value"), [("use_dora", True), ("bias", "all"), ("modules_to_save", ["lm_head"]), ("rank_pattern", {"q_proj": 2})])
def test_adapters_of_another_kind_are_refused_by_name(saved, tmp_path, key, value):
    shutil.copytree(saved[1], tmp_path / "copy")
    file = tmp_path / "copy" / "lora_adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(CheckpointError, match=key):
        OpenVLAOFT.from_pretrained(tmp_path / "copy")


def test_adapters_of_layers_that_are_not_there_are_named(saved, tmp_path):
    shutil.copytree(saved[1], tmp_path / "copy")
    file = tmp_path / "copy" / "lora_adapter" / "adapter_model.safetensors"
    tensors = {name.replace("layers.1.mlp.up_proj", "layers.9.mlp.up_proj"): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match="layers.9.mlp.up_proj"):
        OpenVLAOFT.from_pretrained(tmp_path / "copy")


def test_merged_logits_equal_unmerged_ones(saved):
    policy, folder = saved
    plain = OpenVLAOFT.from_pretrained(folder)
    lora.merge(plain)
    assert not lora.attached(plain)
    torch.testing.assert_close(logits(plain), logits(policy), atol=1e-3, rtol=0)


def test_peft_reads_a_folder_onto_the_transformers_model_with_the_same_logits(saved):
    policy, folder = saved
    model = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(TINY, dtype=torch.float32), folder / "lora_adapter").merge_and_unload()
    plain = OpenVLAOFT.from_pretrained(folder)
    lora.merge(plain)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(plain.state_dict()[name], tensor, atol=1e-6, rtol=0)


def test_adapters_of_layers_that_are_read_directly_count_and_are_kept(tmp_path):
    # what PEFT of the reference's time made of "all-linear": ends of names, which meet lm_head and the patch convolution
    model = AutoModelForImageTextToText.from_pretrained(TINY, dtype=torch.float32)
    made = get_peft_model(model, LoraConfig(r=2, lora_alpha=2, target_modules=["q_proj", "lm_head", "patch_embed.proj"]))
    moved(made)
    made.save_pretrained(tmp_path / "lora_adapter", save_embedding_layers=False)
    for file in TINY.glob("*.json"):
        shutil.copy(file, tmp_path)
    policy = OpenVLAOFT.from_pretrained(tmp_path, base=TINY)
    policy.save_pretrained(tmp_path / "again")
    merged = made.merge_and_unload().state_dict()
    for found in (policy, OpenVLAOFT.from_pretrained(tmp_path / "again")):
        lora.merge(found)
        for name, tensor in found.state_dict().items():
            torch.testing.assert_close(tensor, merged[name], atol=1e-6, rtol=0)


def test_an_l1_head_with_state_and_film_trains_whole_and_comes_back_with_the_adapters(tmp_path):
    statistics = {"toy": STATISTICS["toy"] | {"proprio": {"q01": [-1.0] * 3, "q99": [1.0] * 3}}}
    start = create_checkpoint(tmp_path / "start", ["push"], statistics, sizes={**SMALL, "head": "l1", "state": True, "film": True})
    policy = moved(adapted(start))
    names = [name for name, _ in weights.trainable(policy) if ".lora_" not in name]
    assert {name.split(".")[0] for name in names} == {"action_head", "log_std", "proprio_projector", "vision_backbone"}
    assert all(".film." in name for name in names if name.startswith("vision_backbone"))
    policy.save_pretrained(tmp_path / "adapters")
    assert_equal_to_the_bit(OpenVLAOFT.from_pretrained(tmp_path / "adapters").state_dict(), policy.state_dict())
    assert export.main([f"checkpoint={tmp_path / 'adapters'}", f"out={tmp_path / 'plain'}"]) == 0
    lora.merge(policy)
    assert_equal_to_the_bit(OpenVLAOFT.from_pretrained(tmp_path / "plain").state_dict(), policy.state_dict())


RUN = ["env=toy", "env.action=continuous", "env.gripper=open_-1_close_+1", "env.horizon=16", "env.cameras=[agentview]", "env.reward=dense", "policy=openvla_oft", "algorithm=grpo",
       "algorithm.group_size=4", "groups=2", "algorithm.learner.minibatch=8", "algorithm.learner.warmup_updates=0", "algorithm.learner.schedule=constant", "iterations=2",
       "evaluation.before=false", "evaluation.after=false", "evaluation.episodes=2", "checkpoints.every=1", "checkpoints.keep=9", "policy.lora.rank=4",
       "scheduler.learn_threads=1"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(the arguments of a run with adapters, its folder)."""
    place = tmp_path_factory.mktemp("run")
    start = create_checkpoint(place / "start", ["do the toy task", "push"], STATISTICS, sizes=SMALL)
    arguments = [*RUN, f"policy.checkpoint={start}", "policy.prompt_length=60", f"output={place / 'out'}"]
    train.train(arguments)
    return arguments, next((place / "out").glob("*/*/run.json")).parent


def test_a_run_saves_adapters_alone_and_trains_them(run):
    first, second = (trained(run[1], step) for step in (1, 2))
    assert first and all(".lora_" in name for name in first)
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_a_run_that_is_resumed_ends_with_the_same_bits(run, tmp_path):
    arguments, folder = run
    cut = tmp_path / "toy" / "cut"
    shutil.copytree(folder, cut)
    shutil.rmtree(cut / "checkpoints" / "step_2")
    (cut / "summary.json").unlink()
    assert train.main([f"resume={cut}"]) == 0
    for name in ("policy", "optimizer"):
        assert_equal_to_the_bit(*(checkpoint.load(path / "checkpoints" / "step_2")[0][name] for path in (cut, folder)))


def cut_short(folder, to, start):
    """A copy of a run after its first iteration, that began from `start`."""
    shutil.copytree(folder, to)
    shutil.rmtree(to / "checkpoints" / "step_2")
    (to / "summary.json").unlink()
    text = (to / "config.yaml").read_text()
    (to / "config.yaml").write_text(text.replace(OmegaConf.load(to / "config.yaml").policy.checkpoint, str(start)))
    return to


@pytest.fixture(scope="module")
def start(run):
    return Path(OmegaConf.load(run[1] / "config.yaml").policy.checkpoint)


@pytest.mark.parametrize("file", ["model.safetensors", "dataset_statistics.json"])
def test_a_run_whose_start_has_changed_is_not_resumed(run, start, tmp_path, capsys, file):
    shutil.copytree(start, tmp_path / "start")
    create_checkpoint(tmp_path / "other", ["do the toy task", "push"], {"toy": {"action": {"q01": [-2.0] * 7, "q99": [1.0] * 7}}}, sizes=SMALL, seed=5)
    shutil.copy(tmp_path / "other" / file, tmp_path / "start")
    cut = cut_short(run[1], tmp_path / "toy" / "cut", tmp_path / "start")
    assert train.main([f"resume={cut}"]) == 1
    part = "the weights" if file == "model.safetensors" else file
    assert f"other contents than {cut} began from: {part}; a run keeps its start" in capsys.readouterr().err
    assert not (cut / "checkpoints" / "step_2").exists()


def test_a_run_whose_start_has_moved_says_so_and_goes_on_where_it_is_told_the_place(run, start, tmp_path, capsys):
    cut = cut_short(run[1], tmp_path / "toy" / "cut", tmp_path / "nowhere")
    assert train.main([f"resume={cut}"]) == 1
    assert f"resume={cut} policy.checkpoint=FOLDER" in capsys.readouterr().err
    shutil.copytree(start, tmp_path / "moved")
    assert train.main([f"resume={cut}", f"policy.checkpoint={tmp_path / 'moved'}"]) == 0
    assert_equal_to_the_bit(trained(cut, 2), trained(run[1], 2))


def test_a_run_that_does_not_say_what_it_began_from_keeps_its_place(run, start, tmp_path, capsys):
    cut = cut_short(run[1], tmp_path / "toy" / "cut", start)
    (cut / "start.json").unlink()
    assert train.main([f"resume={cut}", f"policy.checkpoint={TINY}"]) == 1
    assert "policy.checkpoint: the run in" in capsys.readouterr().err


def test_a_run_that_began_from_adapters_goes_on_with_their_base_elsewhere(run, start, tmp_path):
    before = run[1] / "checkpoints" / "step_1" / "policy"
    arguments = [a for a in run[0] if not a.startswith(("policy.checkpoint", "output", "iterations"))]
    train.train([*arguments, f"policy.checkpoint={before}", f"output={tmp_path / 'out'}", "iterations=1"])
    made = next((tmp_path / "out").glob("*/*/run.json")).parent
    shutil.copytree(start, tmp_path / "moved")
    assert train.main([f"resume={made}", "iterations=2", f"policy.base={tmp_path / 'moved'}"]) == 0
    said = json.loads((made / "checkpoints" / "step_2" / "policy" / "lora_adapter" / "adapter_config.json").read_text())
    assert said["base_model_name_or_path"] == str(tmp_path / "moved")


def test_an_export_does_not_go_into_a_checkpoint(run, capsys):
    out = run[1] / "checkpoints" / "step_2" / "policy" / "new"
    assert export.main([f"checkpoint={run[1]}", f"out={out}"]) == 1
    assert "found it inside the checkpoint" in capsys.readouterr().err and not out.exists()


def test_a_run_is_evaluated_and_exported_with_its_adapters(run, tmp_path, capsys):
    arguments, folder = run
    assert evaluate.main([a for a in RUN if a.startswith(("env", "policy=", "evaluation.ep"))] + [f"checkpoint={folder}", "policy.prompt_length=60", f"output={tmp_path / 'out'}"]) == 0
    assert export.main([f"checkpoint={folder}", f"out={tmp_path / 'plain'}"]) == 0
    assert "adapters of rank 4" in capsys.readouterr().out
    plain, with_adapters = OpenVLAOFT.from_pretrained(tmp_path / "plain"), OpenVLAOFT.from_pretrained(folder / "checkpoints" / "step_2" / "policy")
    lora.merge(with_adapters)
    assert_equal_to_the_bit(plain.state_dict(), with_adapters.state_dict())


def test_an_export_goes_into_an_empty_folder_only(run, tmp_path, capsys):
    (tmp_path / "mine").write_text("kept")
    assert export.main([f"checkpoint={run[1]}", f"out={tmp_path}"]) == 1
    assert "wanted a folder that is not there yet" in capsys.readouterr().err


def test_an_export_whose_logits_would_change_is_refused_and_writes_nothing(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(export.lora, "merge", lambda policy: policy.projector.fc1.base_layer.weight.data.mul_(1.1))
    assert export.main([f"checkpoint={saved[1]}", f"out={tmp_path / 'plain'}"]) == 1
    assert "nothing is written" in capsys.readouterr().err and not (tmp_path / "plain").exists()


def test_an_export_in_bfloat16_says_what_rounding_costs(saved, tmp_path, capsys):
    assert export.main([f"checkpoint={saved[1]}", f"out={tmp_path / 'plain'}", "dtype=bfloat16"]) == 0
    assert "rounded to bfloat16: logits differ by" in capsys.readouterr().out
    assert {tensor.dtype for tensor in load_file(tmp_path / "plain" / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize(("arguments", "named"), [(["out=x"], "no checkpoint"), (["checkpoint=x", "out=y", "dtpe=z"], "'dtype'"), (["checkpoint=x", "out=y", "dtype=int8"], "dtype=int8")])
def test_an_export_that_lacks_something_says_what(arguments, named, capsys):
    assert export.main(arguments) == 1
    assert named in capsys.readouterr().err

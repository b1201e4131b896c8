"""OpenVLA-OFT's L1 head trained as a Gaussian policy, through the same entry points as a user's."""

import torch

from policies.checkpoints.fresh import create_checkpoint
from policies.openvla_oft import OpenVLAOFTL1
from tests.end_to_end.runs import run, trained

STATISTICS = {"toy": {"action": {"q01": [-1.0] * 3, "q99": [1.0] * 3, "mask": [True, True, False]}, "proprio": {"q01": [0.0] * 6, "q99": [8.0] * 6}}}
SIZES = {"image": 32, "patch": 16, "vision_width": 16, "hidden": 32, "layers": 2, "mlp": 48, "head": "l1", "chunk": 2, "state": True, "cameras": ("front", "wrist")}
ARGUMENTS = ["policy=openvla_oft", "env.action=continuous", "env.dims=3", "env.gripper=open_-1_close_+1", "algorithm=ppo", "algorithm.learner.epochs=1", "iterations=2"]


def test_ppo_trains_the_l1_head_and_its_spread_on_two_cameras_and_the_state(tmp_path):
    start = create_checkpoint(tmp_path / "start", ["match the red level"], STATISTICS, sizes=SIZES)
    folder = run(tmp_path, *ARGUMENTS, f"policy.checkpoint={start}", "policy.prompt_length=48", "scheduler.learn_threads=1")
    before, after = OpenVLAOFTL1.from_pretrained(start).state_dict(), trained(folder, 2)
    for name in ("log_std", "action_head.model.fc2.weight", "proprio_projector.fc1.weight", "language_model.model.layers.0.self_attn.q_proj.weight"):
        assert not torch.equal(after[name], before[name]), name

"""`PutOnPlateEnv`: ManiSkillEnv on the put-on-plate task, with a split and with stand-ins or one's own assets."""

from __future__ import annotations

import itertools
from dataclasses import replace

from envs.maniskill.env import ManiSkillEnv
from envs.maniskill.put_on_plate.assets import from_folder
from envs.maniskill.put_on_plate.catalogue import Catalogue, stand_ins
from envs.maniskill.put_on_plate.splits import SPLITS, TEXTS, split_of

SUCCESS = "the object is over the plate (half its longest side + 1 cm in the plane, 5 cm in height) and pushes it with more than 0.03 N"


class PutOnPlateEnv(ManiSkillEnv):
    """split: a name of `splits.SPLITS`. assets: a folder in the layout of RL4VLA and RLinf (see `assets`), None = primitives as stand-ins.

    settings: as for ManiSkillEnv. Raises ValueError for a split that there is not and for a folder that is not complete.
    """

    def __init__(self, split: str = "train", assets: str | None = None, **settings):
        chosen, self._catalogue = split_of(split), stand_ins() if assets is None else from_folder(assets)
        super().__init__("PutOnPlateStandIn-v1", arguments={"split": split, "assets": assets}, **settings)
        about = {
            "split": split, "split_changes": chosen.changes, "split_in_literature": f"PutOnPlateInScene25{chosen.literature}",
            "objects": self._catalogue.source, "success_is": SUCCESS,
        }  # fmt: skip
        texts = dict.fromkeys([*self.env_spec.instructions, *texts_of(self._catalogue)])
        self.env_spec = replace(self.env_spec, name=f"PutOnPlateStandIn-v1 {split}", instructions=tuple(texts), protocol={**about, **self.env_spec.protocol})


def texts_of(catalogue: Catalogue) -> tuple[str, ...]:
    """Every text that an episode of any split may give."""
    found = {}
    for split in SPLITS.values():
        for text, thing, plate in itertools.product(split.texts, split.objects, split.plates):
            found[TEXTS[text].format(object=catalogue.objects[thing].name, plate=catalogue.plates[plate].name)] = None
    return tuple(found)

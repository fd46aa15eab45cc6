"""The findings that docs/tutorial/ten-findings.md shows. ``python -m tests.ten_findings FOLDER`` writes them anew.

FOLDER holds the public traces, under the names in SOURCES. Look at the difference before committing it: the sentences
around the blocks speak of the same numbers.
"""

import contextlib
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bottleneck.pipeline import analyse
from bottleneck.report import render_report

PAGE = Path(__file__).parents[1] / "docs" / "tutorial" / "ten-findings.md"

_PARTICLE = "harryjmoss+particle_transformer"
_SAMPLES = "pytorch+kineto__tb_plugin__samples__"
_TRACELENS = "AMD-AGI+TraceLens__tests__traces__"
_STRAGGLER = (
    "pytorch+torchrec__examples__golden_training__trace__sst_sleep_pl_dense_after_backward_2__ip-172-31-16-248.us-east-2."
    "compute.internal_"
)
# The name in the page's commands: the trace in the folder.
SOURCES: Mapping[str, str] = {
    "bert-small.json.gz": f"{_TRACELENS}h100__gaunernst_bert-small-uncased__1016001.json.gz",
    "timesformer.json.gz": f"{_TRACELENS}h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "resnet-ddp.json.gz": f"{_TRACELENS}mi300__resnet_act_checkpoint.json.gz",
    "particle-2.json.gz": f"{_PARTICLE}__run1_chrome_traces__single_epoch_forward_pass_batch_size_2.json.gz",
    "switch.json.gz": "CodingPlatelets+SwitchTransformers__result__trace_100Kpar_4exp_8batch_128seq_1024.json.gz",
    "sam.json.gz": "pytorch-labs+segment-anything-fast__amg_example__asdf_False_at_9ab058c.json.gz",
    "sam-fast.json.gz": "pytorch-labs+segment-anything-fast__amg_example__asdf_True_at_c84af29.json.gz",
    "torchbench.json.gz": "pytorch+benchmark__trace3.json.gz",
    "resnet50.json.gz": f"{_SAMPLES}resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz",
    "rank0.json.gz": f"{_STRAGGLER}19488.1698954910154219890.pt.trace.json.gz",
    "rank1.json.gz": f"{_STRAGGLER}19489.1698954910152673270.pt.trace.json.gz",
    "rank2.json.gz": f"{_STRAGGLER}19490.1698954910152757753.pt.trace.json.gz",
    "rank3.json.gz": f"{_STRAGGLER}19491.1698954910156299738.pt.trace.json.gz",
}

# '<!-- SLUG -->', the block with the command, and the block with what it prints of that finding.
SHOWN = re.compile(
    r"(?P<head><!-- (?P<slug>[\w-]+) -->\n+```\nbottleneck report (?P<traces>[^\n]+?) --all-findings\n```\n+```\n)"
    r"(?P<text>.*?)(?P<tail>\n```\n)",
    re.DOTALL,
)


def told(slug: str, traces: str, folder: Path) -> str:
    """One finding in the report of these traces, in 80 columns."""
    with tempfile.TemporaryDirectory() as here, contextlib.chdir(here):
        for name in traces.split():
            Path(name).symlink_to(folder / SOURCES[name])
        report = render_report(analyse([Path(name) for name in traces.split()]), "terminal", all_findings=True)
    section = report.split("\nWhat to change ", 1)[1].split("\n\n", 1)[0]
    items = re.findall(r"^\d+\. .*\n(?:   .*\n?)*", f"{section}\n", re.MULTILINE)
    return next(item for item in items if f"[{slug}]" in item).rstrip("\n")


def written(page: str, folder: Path) -> str:
    """The page with what the reports say now."""
    return SHOWN.sub(
        lambda found: f"{found['head']}{told(found['slug'], found['traces'], folder)}{found['tail']}", page
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), Path(sys.argv[1]).resolve()), encoding="utf-8")

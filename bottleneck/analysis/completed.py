"""The part of the time whose price rests on more than the calls' own records, or leaves something open."""

import numpy as np
import pandas as pd

from bottleneck.analysis.charged import Charged
from bottleneck.records import Caveat
from bottleneck.units import format_share

# Less of the charged time than this is not worth a line.
_WORTH_A_LINE = 0.01
_SHOWN = 3


def completed_caveats(rows: Charged) -> tuple[Caveat, ...]:
    """One caveat that names what the prices rest on, most time first; none where nearly all of it was recorded."""
    told, texts = pd.factorize(rows.costs["evidence"])
    code = np.append(told, -1)[rows.op_codes("signature")]
    completed = (code >= 0) & (rows.us > 0)
    total_us = float(rows.us.sum())
    share = float(rows.us[completed].sum()) / total_us if total_us > 0 else 0.0
    if share < _WORTH_A_LINE:
        return ()
    us = np.bincount(code[completed], weights=rows.us[completed], minlength=len(texts))
    most = [str(texts[place]) for place in np.argsort(-us, kind="stable")[:_SHOWN] if us[place] > 0]
    facts = list(dict.fromkeys(fact for text in most for fact in text.split("; ")))
    message = (
        f"{format_share(share)} of the work is priced by more than its calls recorded ({'; '.join(facts)}); "
        "none of that is judged with high confidence"
    )
    return (Caveat("completed-calls", message, share),)

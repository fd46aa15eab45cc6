"""Run in a process of its own: what `import bottleneck` gives here, and whether pandas works beside it."""

import json


def tell(stage: str, **facts: object) -> None:
    """Writes a line that the other side recognises among whatever else is printed."""
    print(f"\nbottleneck-fact {json.dumps([stage, facts])}", flush=True)


def main() -> None:
    """Both stages."""
    import bottleneck

    tell("bottleneck", file=str(bottleneck.__file__), is_array_library=hasattr(bottleneck, "nanmedian"))
    import pandas as pd

    tell("import", version=str(pd.__version__))
    median = float(pd.Series([3.0, 1.0, 2.0, float("nan")]).median())
    tell("median", value=median)


if __name__ == "__main__":
    main()

"""Write xprof's tables of profiles: `python -m tpufeed.measure.xprof_tables FOLDER...`, of which each holds `PROFILE`.

`xplane` runs this in a process of its own. It ends at a profile that xprof cannot read.
"""

import json
import sys
from pathlib import Path
from typing import Any

TOOLS = ("overview_page", "roofline_model")
PROFILE, RESULT = "host.xplane.pb", "tables.json"

if __name__ == "__main__":
    from xprof.convert import raw_to_tool_data

    for name in sys.argv[1:]:
        found: list[dict[str, Any]] = []
        for tool in TOOLS:
            profile = str(Path(name, PROFILE))
            text, _ = raw_to_tool_data.xspace_to_tool_data([profile], tool, {"use_saved_result": False})
            if text is None:
                sys.exit(1)
            found += json.loads(text)
        Path(name, RESULT).write_text(json.dumps(found))

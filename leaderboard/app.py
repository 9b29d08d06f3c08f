"""The leaderboard as a Space: the page over the results data set that the variable SELECTIVBENCH_RESULTS names, OWNER/selectivbench-results."""

import os
import sys

try:
    from selectivbench_hf.cli import main
except ModuleNotFoundError as error:
    if error.name != "selectivbench_hf":
        raise
    sys.exit(
        "error: the package lies neither beside app.py nor among the installed ones; README.md says how to upload it"
    )

if __name__ == "__main__":
    port = os.environ.get("GRADIO_SERVER_PORT", "7860")
    sys.exit(main(["leaderboard", "--host", "0.0.0.0", "--port", port, "--no_browser"]))

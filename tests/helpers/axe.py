"""What axe-core says about the accessibility of a page."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from tests.helpers.browser import Browser

OPTIONS = {
    "resultTypes": ["violations"],
    "rules": {"label-content-name-mismatch": {"enabled": True}},  # of WCAG, but off by default
}


def load_axe(browser: Browser) -> None:
    """Load axe-core into the open page."""
    package = importlib.util.find_spec("axe_playwright_python")  # Playwright is not imported
    if package is None or package.origin is None:
        raise RuntimeError("axe-core is missing: install the extra slow.")
    browser.ask(Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8") + ";0")


def serious_violations(browser: Browser) -> list[str]:
    """Return a line for each rule that is broken and whose impact is serious or critical."""
    violations: list[dict[str, Any]] = browser.ask(
        f"axe.run(document, {json.dumps(OPTIONS)}).then((results) => results.violations)"
    )
    serious = [rule for rule in violations if rule["impact"] in ("serious", "critical")]
    return [f"{rule['id']}: {[node['html'] for node in rule['nodes']]}" for rule in serious]

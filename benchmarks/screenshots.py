"""Screenshots of every page of a running Motet, light, dark and on a phone, for docs/screenshots.

`python -m benchmarks.screenshots --task TASK [--other TASK] [--only tasks,task]` asks the local stack for sign-in links with
its keys or, with MOTET_API_URL and MOTET_API_KEY, another service. It changes nothing there.
"""

import argparse
import os
import shutil
from pathlib import Path

from motet import Client
from motet.api import credentials
from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parent.parent / "docs" / "screenshots"
_SWITCHES = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
_ADMINS = ("admin",)
_WHOLE = 1600  # pixels of height at most


def pages(task: str, other: str) -> dict[str, str]:
    return {
        "tasks": "/tasks",
        "task": f"/tasks/{task}",
        "new_task": f"/tasks/new?like={task}",
        "compare": f"/compare?task={task}&task={other}",
        "cluster": "/cluster",
        "files": "/files",
        "adapters": "/adapters",
        "usage": "/usage",
        "keys": "/keys",
        "webhooks": "/webhooks",
        "admin": "/admin",
        "api": "/docs",
    }


def take(browser: Browser, look: str, url: str, links: dict[str, str], named: dict[str, str]) -> None:
    for who, names in (("demo", [n for n in named if n not in _ADMINS]), ("admin", [n for n in named if n in _ADMINS])):
        if not names:
            continue
        context = browser.new_context(**LOOKS[look])  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(links[who])
        page.wait_for_url("**/tasks")
        for name in names:
            page.goto(url + named[name])
            if name in ("task", "compare"):
                page.wait_for_selector("html[data-drawn]")
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(500)
            height = min(_WHOLE, page.evaluate("document.documentElement.scrollHeight"))
            size = LOOKS[look]["viewport"]
            page.set_viewport_size({"width": size["width"], "height": max(size["height"], height)})  # type: ignore[index]
            page.wait_for_timeout(300)
            page.screenshot(path=FOLDER / f"{name}-{look}.png")
            page.set_viewport_size(size)  # type: ignore[arg-type]
        context.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", required=True)
    parser.add_argument("--other")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    known = credentials.find()
    named = pages(asked.task, asked.other or asked.task)
    if asked.only:
        named = {name: named[name] for name in asked.only.split(",")}
    FOLDER.mkdir(exist_ok=True)
    keys = {"demo": known.key, "admin": known.admin_key or known.key}
    with sync_playwright() as playwright:
        program = os.environ.get("MOTET_CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=_SWITCHES)
        for look in LOOKS:
            links = {}
            for who, key in keys.items():
                with Client(known.api_url, key) as client:
                    links[who] = client.account.sign_in_link().url
            take(browser, look, known.api_url, links, named)
        browser.close()


if __name__ == "__main__":
    main()

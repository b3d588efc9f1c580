"""docs/comparison.md compares the same tools on every point, from sources of their own makers (issue 8)."""

import re
from typing import Final

from tests.tools.doctext import ROOT

TEXT: Final = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
OTHERS: Final = ["Vault Agent", "Secrets Store CSI driver", "Dapr secrets", "AWS Secrets Manager Agent", "SPIRE"]
OFFICIAL: Final = {
    "Vault Agent": "https://developer.hashicorp.com/",
    "Secrets Store CSI driver": (
        "https://secrets-store-csi-driver.sigs.k8s.io/",
        "https://github.com/kubernetes-sigs/secrets-store-csi-driver/",
        "https://kubernetes-csi.github.io/",
    ),
    "Dapr secrets": "https://docs.dapr.io/",
    "AWS Secrets Manager Agent": ("https://docs.aws.amazon.com/", "https://github.com/aws/"),
    "SPIRE": ("https://spiffe.io/", "https://github.com/spiffe/"),
}


def test_every_table_has_every_tool() -> None:
    """Each table has us first and then the five others, in one order, and no cell is left empty."""
    tables = re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE)
    assert len(tables) >= 5
    for table in tables:
        rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
        assert [row[0] for row in rows] == ["secret-sidecar", *OTHERS]
        assert [row for row in rows if "" in row] in ([], [["secret-sidecar", rows[0][1], ""]])


def test_every_point_of_the_issue_is_compared() -> None:
    """The points that the comparison is for are columns of some table."""
    columns = " ".join(row for row in re.findall(r"^\| +\|(.*)\|$", TEXT, re.MULTILINE)).lower()
    for point in ("authentication", "authorisation", "moment of delivery", "revocation", "rotated", "cache", "at rest",
                  "in memory", "environment", "audit", "limits", "fails", "runs as"):  # fmt: skip
        assert point in columns, point


def test_every_tool_has_sources_of_its_makers() -> None:
    """Each tool is listed with links, all of them to its own documentation or source."""
    sources = TEXT.partition("## Sources")[2]
    for tool in OTHERS:
        item = sources.partition(f"- **{tool}**:")[2].partition("\n- ")[0]
        links = re.findall(r"\]\((https://[^)]+)\)", item)
        assert len(links) >= 2, tool
        assert [link for link in links if not link.startswith(OFFICIAL[tool])] == []


def test_where_others_are_better_is_said() -> None:
    """The page says where others are better, and that at length."""
    assert (
        len(re.findall(r"^- \*\*", TEXT.partition("## Where they are better")[2].partition("\n## ")[0], re.MULTILINE))
        >= 5
    )

"""The kind derived from a class name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.kinds import derive_kind


@pytest.mark.parametrize(
    ("class_name", "kind"),
    [
        ("SendEmail", "send_email"),
        ("SMTPEmail", "smtp_email"),
        ("OAuthRefresh", "o_auth_refresh"),
        ("PDFRenderJob", "pdf_render_job"),
        ("ProcessV2Import", "process_v2_import"),
        ("ReconcileQ3Revenue", "reconcile_q3_revenue"),
        ("HTMLToPDF", "html_to_pdf"),
        ("IOError", "io_error"),
        ("A", "a"),
        ("AB", "ab"),
        ("already_snake", "already_snake"),
        ("ÜberJob", "über_job"),
        ("", ""),
    ],
)
def test_a_class_name_becomes_its_kind(class_name: str, kind: str) -> None:
    assert derive_kind(class_name) == kind


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,40}", fullmatch=True))
def test_deriving_twice_changes_nothing_and_loses_no_letter(class_name: str) -> None:
    kind = derive_kind(class_name)
    assert derive_kind(kind) == kind
    assert kind.replace("_", "") == class_name.lower().replace("_", "")

"""Who a container's first process is: every way to say it, and what an image cannot make of it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.model.records import GroupsPolicy, Security
from podkeep.runtime.oci.users import User, number_of, resolve

PASSWD = """root:x:0:0:root:/root:/bin/sh
daemon:x:1:1::/usr/sbin:/usr/sbin/nologin
app:x:1000:1001:An app:/home/app:/bin/sh
nohome:x:1002:1002:::/bin/sh
owner:x:2147549184:1002::/:/bin/sh
"""
GROUP = """root:x:0:
daemon:x:1:
app:x:1001:
wheel:x:10:root,app
audio:x:29:daemon,app
"""

FORMS = {
    "nothing is root": ({}, "", User(uid=0, gid=0, groups=(0, 10), home="/root")),
    "name": ({}, "app", User(uid=1000, gid=1001, groups=(1001, 10, 29), home="/home/app")),
    "uid of an account": ({}, "1000", User(uid=1000, gid=1001, groups=(1001, 10, 29), home="/home/app")),
    "uid of nobody": ({}, "4711", User(uid=4711, gid=0, groups=(0,), home="/")),
    "name:group": ({}, "app:audio", User(uid=1000, gid=29, groups=(29, 10), home="/home/app")),
    "uid:gid": ({}, "4711:4712", User(uid=4711, gid=4712, groups=(4712,), home="/")),
    "name:gid": ({}, "app:5", User(uid=1000, gid=5, groups=(5, 10, 29), home="/home/app")),
    "uid:group": ({}, "4711:audio", User(uid=4711, gid=29, groups=(29,), home="/")),
    "account without home": ({}, "nohome", User(uid=1002, gid=1002, groups=(1002,), home="/")),
    "run_as_user": ({"run_as_user": 1}, "app", User(uid=1, gid=1, groups=(1, 29), home="/usr/sbin")),
    "run_as_user 0 over the image": ({"run_as_user": 0}, "app", User(uid=0, gid=0, groups=(0, 10), home="/root")),
    "run_as_user drops the image's group": (
        {"run_as_user": 4711},
        "app:audio",
        User(uid=4711, gid=0, groups=(0,), home="/"),
    ),
    "run_as_username": ({"run_as_username": "daemon"}, "app", User(uid=1, gid=1, groups=(1, 29), home="/usr/sbin")),
    "run_as_user and group": (
        {"run_as_user": 1000, "run_as_group": 7},
        "",
        User(uid=1000, gid=7, groups=(7, 10, 29), home="/home/app"),
    ),
    "run_as_group over the image's": (
        {"run_as_group": 7},
        "app:audio",
        User(uid=1000, gid=7, groups=(7, 10, 29), home="/home/app"),
    ),
    "supplemental groups come before the image's": (
        {"run_as_user": 1000, "supplemental_groups": (200, 10)},
        "",
        User(uid=1000, gid=1001, groups=(1001, 200, 10, 29), home="/home/app"),
    ),
}


@pytest.mark.requirement("U8")
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str) -> None:
    security, image_user, expected = FORMS[form]
    assert resolve(Security(**security), image_user, passwd=PASSWD, group=GROUP) == expected


def test_strict_leaves_the_images_memberships_out() -> None:
    security = Security(run_as_user=1000, supplemental_groups=(200,), groups_policy=GroupsPolicy.STRICT)
    assert resolve(security, "", passwd=PASSWD, group=GROUP).groups == (1001, 200)


@pytest.mark.parametrize(
    ("security", "image_user", "named"),
    [
        ({}, "ghost", "ghost"),
        ({"run_as_username": "ghost"}, "", "ghost"),
        ({}, "app:ghosts", "ghosts"),
        ({"run_as_group": 5}, "", "run_as_group"),
        ({}, "-1", "-1"),
        ({}, "2147483648", "2147483648"),
        ({}, "owner", "2147549184"),
        ({}, "0x10", "0x10"),
        ({}, "١", "١"),
        ({}, "root:-1", "-1"),
    ],
)
def test_what_is_no_user(security: dict[str, Any], image_user: str, named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve(Security(**security), image_user, passwd=PASSWD, group=GROUP)
    assert named in str(caught.value)


@pytest.mark.parametrize("user", ["9" * 5000, f"0:{'9' * 5000}"])
def test_a_number_longer_than_any_id(user: str) -> None:
    with pytest.raises(InvalidArgument):
        resolve(Security(), user, passwd=PASSWD, group=GROUP)


def test_a_number_longer_than_any_id_in_the_images_files() -> None:
    huge = "9" * 5000
    passwd, group = f"app:x:{huge}:0::/:\nlow:x:5:{huge}::/:\nok:x:6:7::/:\n", f"g:x:{huge}:ok\nh:x:8:ok\n"
    assert resolve(Security(), "ok", passwd=passwd, group=group) == User(uid=6, gid=7, groups=(7, 8), home="/")
    with pytest.raises(InvalidArgument):
        resolve(Security(), "app", passwd=passwd, group=group)


@pytest.mark.requirement("U8")
@pytest.mark.parametrize(
    ("security", "image_user"), [({"run_as_user": 1000}, ""), ({}, "1000"), ({"run_as_user": 1000}, "root")]
)
def test_a_number_is_a_number_whatever_the_image_calls_its_accounts(security: dict[str, Any], image_user: str) -> None:
    """An account *named* 1000 with UID 0 must not turn runAsUser: 1000, which passed runAsNonRoot, into root."""
    passwd, group = "1000:x:0:0::/root:/bin/sh\n", "7:x:0:\n"
    assert resolve(Security(**security), image_user, passwd=passwd, group=group).uid == 1000
    in_group = Security(run_as_user=1000, run_as_group=7)
    assert resolve(in_group, image_user, passwd=passwd, group=group).gid == 7


def test_an_image_without_accounts() -> None:
    assert resolve(Security(run_as_user=5), "", passwd="", group="") == User(uid=5, gid=0, groups=(0,), home="/")


def test_broken_lines_are_passed_over() -> None:
    passwd = "\n:::\n#comment\napp:x:ten:1::/:\napp:x:10\napp:x:11:12::/home:\n"
    assert resolve(Security(), "app", passwd=passwd, group="wheel\nx:y:z:app\n") == User(
        uid=11, gid=12, groups=(12,), home="/home"
    )


@given(user=st.text(), passwd=st.text(), group=st.text())
def test_no_image_makes_it_fail_otherwise_than_with_a_refusal(user: str, passwd: str, group: str) -> None:
    try:
        found = resolve(Security(), user, passwd=passwd, group=group)
    except InvalidArgument:
        return
    assert 0 <= found.uid < 2**31
    assert found.groups[0] == found.gid
    assert len(set(found.groups)) == len(found.groups)


@pytest.mark.parametrize("text", ["99999999999", "2147483648", "0000000000000", "9" * 5000])
@pytest.mark.parametrize("wanted", ["{}", "app:{}"])
def test_a_number_that_is_no_id_is_refused_also_if_an_account_has_that_name(text: str, wanted: str) -> None:
    """ImageStatus would tell another ID than the account's, and a kubelet would believe that it is not root."""
    with pytest.raises(InvalidArgument, match="is a number, but no ID") as caught:
        resolve(Security(), wanted.format(text), passwd=f"{text}:x:0:0::/:/bin/sh\n{PASSWD}", group=f"{text}:x:0:\n")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["\u00b2", "\u0663", "\uff11", "1\u00b2", "+1", "-1", " 1", "1_000", "0x0"])
def test_only_ascii_digits_are_a_number(text: str) -> None:
    assert number_of(text) is None
    with pytest.raises(InvalidArgument, match="is not in the image's /etc/passwd"):
        resolve(Security(), text, passwd=PASSWD, group=GROUP)
    found = resolve(Security(), text, passwd=f"{text}:x:7:8::/:/bin/sh", group="")
    assert (found.uid, found.gid) == (7, 8)


@pytest.mark.parametrize("line", ["a:x:\u00b2:0::/:", "a:x:" + "9" * 5000 + ":0::/:", "a:x:0:\u0663::/:", "a:x::0::/:"])
def test_lines_of_passwd_with_other_ids_are_passed_over(line: str) -> None:
    with pytest.raises(InvalidArgument, match="is not in the image's"):
        resolve(Security(), "a", passwd=line, group="")


def test_lines_end_where_the_c_library_ends_them() -> None:
    for separator in ("\u2028", "\x85", "\x0b", "\x0c", "\x1c"):
        with pytest.raises(InvalidArgument, match="is not in the image's"):
            resolve(Security(), "evil", passwd=f"app:x:1:1:{separator}evil:x:0:0::/:{separator}:/:/bin/sh", group="")


@pytest.mark.slow
def test_a_process_has_not_more_groups_than_the_kernel_takes() -> None:
    def groups(count: int) -> str:
        return "".join(f"g{number}:x:{number}:app\n" for number in range(2000, 2000 + count))

    security = Security(run_as_user=1000, supplemental_groups=(7, 2000))
    passwd = "app:x:1000:1000::/:\n"
    assert len(resolve(security, "", passwd=passwd, group=groups(65_534)).groups) == 65_536
    with pytest.raises(InvalidArgument, match="65537 groups"):
        resolve(security, "", passwd=passwd, group=groups(65_535))


def test_others_of_an_image_take_little_time() -> None:
    """A container's creation holds the interpreter's lock for it."""
    passwd = "other:x:7:7::/\n" * 60_000 + "app:x:0042:50::/home/app:/bin/sh\n"
    group = "other:x:7:nobody\n" * 60_000 + "app:x:50:\nstaff:x:60:nobody,app\n"
    found = []
    started = time.process_time()
    for wanted in ("app", "42:staff"):
        found.append(resolve(Security(), wanted, passwd=passwd, group=group))
    assert time.process_time() - started < 0.4
    assert [(user.uid, user.gid, user.groups, user.home) for user in found] == [
        (42, 50, (50, 60), "/home/app"),
        (42, 60, (60,), "/home/app"),
    ]

"""What a user of pymemcache does: memcached_py.py PORT."""

import sys
import time

from pymemcache import serde
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheIllegalInputError


def check(port, default_noreply):
    client = Client(("127.0.0.1", port), serde=serde.pickle_serde, default_noreply=default_noreply)
    assert client.flush_all(noreply=False) is True
    assert client.get("k") is None
    assert client.set("k", b"\x00\xff\r\nEND\r\n") is True
    assert client.get("k") == b"\x00\xff\r\nEND\r\n"
    for value in ["text", 42, 2**70, {"a": [1, 2.5, None]}, "x" * 100_000]:
        assert client.set("typed", value) is True
        assert client.get("typed") == value
    assert client.add("k", "other", noreply=False) is False
    assert client.replace("none", "other", noreply=False) is False
    assert client.append("text", "!", noreply=False) is False
    assert client.set_many({f"m{n}": str(n) for n in range(1000)}) == []
    assert client.get_many([f"m{n}" for n in range(1000)] + ["none"]) == {f"m{n}": str(n) for n in range(1000)}
    value, unique = client.gets("k")
    assert client.cas("k", "new", unique, noreply=False) is True
    assert client.cas("k", "newer", unique, noreply=False) is False
    assert client.cas("none", "new", unique, noreply=False) is None
    assert client.gets_many(["k"])["k"][0] == "new"
    assert client.set("n", "10")
    assert (client.incr("n", 5, noreply=False), client.decr("n", 20, noreply=False), client.incr("none", 1, noreply=False)) == (15, 0, None)
    assert client.set("short", "lived", expire=1) and client.set("long", "lived", expire=int(time.time()) + 1000)
    assert client.touch("short", 1000, noreply=False) is True and client.touch("none", noreply=False) is False
    assert client.touch("long", 1, noreply=False) is True and client.touch("short", 1, noreply=False) is True
    time.sleep(1.1)
    assert client.get_many(["short", "long"]) == {}
    assert client.delete("k", noreply=False) is True and client.delete("k", noreply=False) is False
    assert client.delete_many(["m1", "m2"]) is True and client.get_many(["m1", "m2", "m3"]) == {"m3": "3"}
    assert client.version().startswith(b"1.")
    assert client.stats()[b"curr_items"] > 0
    try:
        client.set("k" * 251, "")
        raise AssertionError("a key that is too long")
    except MemcacheIllegalInputError:
        pass
    client.quit()


if __name__ == "__main__":
    for noreply in [True, False]:
        check(int(sys.argv[1]), noreply)
    print("ok")

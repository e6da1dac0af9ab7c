"""What a user of redis-py does, over RESP2 and RESP3: redis_py.py PORT."""

import sys

import redis


def check(port, protocol):
    client = redis.Redis(port=port, protocol=protocol, client_name="tests")
    client.flushall()
    assert client.ping() is True
    assert client.set("k", b"\x00\xff\r\n") is True
    assert client.get("k") == b"\x00\xff\r\n"
    assert client.get("none") is None
    assert client.set("k", "new", nx=True) is None
    assert client.set("k", "new", xx=True, get=True) == b"\x00\xff\r\n"
    assert client.mset({"a": 1, "b": 2}) is True
    assert client.mget("a", "none", "b") == [b"1", None, b"2"]
    assert client.msetnx({"a": 1, "z": 2}) is False
    assert (client.incr("n"), client.decrby("n", 5), client.incrbyfloat("f", 0.1)) == (1, -4, 0.1)
    assert client.append("k", "er") == 5
    assert client.getrange("k", 0, 2) == b"new"
    assert client.setrange("k", 1, "i") == 5
    assert client.strlen("k") == 5
    assert client.exists("a", "b", "none") == 2
    assert client.type("a") == b"string"
    assert client.rename("a", "c") is True
    assert sorted(client.keys("?")) == [b"b", b"c", b"f", b"k", b"n"]
    assert client.getdel("c") == b"1"
    assert client.delete("b", "none") == 1
    assert client.dbsize() == 3
    assert client.client_getname() in ("tests", b"tests")
    assert client.client_list()[0]["name"] == "tests"
    assert client.config_get("maxclients") == {"maxclients": "10000"}
    assert client.info()["db0"]["keys"] == 3
    assert client.command_count() == len(client.command())
    assert isinstance(client.time(), tuple)
    try:
        client.incr("k")
        raise AssertionError("a word was incremented")
    except redis.ResponseError as error:
        assert str(error) == "value is not an integer or out of range", error

    with client.pipeline(transaction=False) as pipeline:
        for number in range(5000):
            pipeline.set(f"key{number:04}", number)
        assert pipeline.execute() == [True] * 5000
        for number in range(5000):
            pipeline.get(f"key{number:04}")
        assert pipeline.execute() == [b"%d" % number for number in range(5000)]
    assert len(set(client.scan_iter(match="key*", count=77))) == 5000
    found = client.execute_command("RANGE", "key0010", "(key0012")
    pairs = [[b"key0010", b"10"], [b"key0011", b"11"]]
    assert found == (pairs if protocol == 3 else sum(pairs, [])), found

    # Locks are released and extended by scripts.
    with client.lock("lock", timeout=60) as lock:
        assert client.lock("lock", blocking=False).acquire() is False
        assert lock.extend(60) is True and lock.reacquire() is True and lock.owned()
    assert client.exists("lock") == 0
    double = client.register_script("return tonumber(ARGV[1]) * redis.call('INCR', KEYS[1])")
    assert [double(keys=["doubled"], args=[2]) for _ in range(3)] == [2, 4, 6]
    client.delete("doubled")
    assert client.config_set("slowlog-log-slower-than", 0) is True
    client.get("k")
    assert client.config_set("slowlog-log-slower-than", 10000) is True
    assert b"get k" in [entry["command"] for entry in client.slowlog_get()]
    assert client.info("commandstats")["cmdstat_get"]["calls"] > 5000

    client.set("n", 5)
    with client.pipeline(transaction=True) as pipeline:
        for number in range(1000):
            pipeline.incr("n").set(f"t{number}", number)
        assert pipeline.execute() == [part for number in range(1000) for part in (6 + number, True)]
        pipeline.incr("n").incr("k").get("n")
        replies = pipeline.execute(raise_on_error=False)
        assert (replies[0], replies[2]) == (1006, b"1006") and isinstance(replies[1], redis.ResponseError), replies
        pipeline.watch("n")
        seen = int(pipeline.get("n"))
        pipeline.multi()
        pipeline.set("n", seen + 1)
        assert pipeline.execute() == [True]
        pipeline.watch("n")
        client.set("n", 0)
        pipeline.multi()
        pipeline.set("n", 1)
        try:
            pipeline.execute()
            raise AssertionError("a watched key was changed")
        except redis.WatchError:
            pass

    def increment(pipeline):
        seen = int(pipeline.get("n"))
        pipeline.multi()
        pipeline.set("n", seen + 1)

    assert client.transaction(increment, "n") == [True] and client.get("n") == b"1"
    client.delete(*(f"t{number}" for number in range(1000)))

    other = redis.Redis(port=port, protocol=protocol, db=5)
    assert other.get("k") is None
    assert other.set("k", 1) and client.get("k") == b"niwer"
    assert other.flushdb() and client.dbsize() == 5003
    large = bytes(range(256)) * 40_000
    assert client.set("large", large) and client.get("large") == large


for protocol in (2, 3):
    check(int(sys.argv[1]), protocol)
    print(f"redis-py {redis.__version__} over RESP{protocol}: fine")

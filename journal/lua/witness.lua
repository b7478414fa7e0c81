-- witness: write something that means nothing, so that a WAIT behind it on the same connection counts.
--
-- WAIT asks how many replicas have what its own connection wrote last. A call that was answered without a write, because
-- it had been applied before over a connection that is gone, would be told of as replicated at once.
--
-- KEYS  1 a key of the partition's tag that is there for nothing else
--
-- Answers 1. The key goes by itself after a minute.
-- Refuses nothing.

local function witness(keys)
  redis.call('SET', keys[1], '', 'PX', 60000)
  return 1
end

register('witness', witness, {'allow-oom'})

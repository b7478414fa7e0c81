-- observe: who holds a partition, as a would-be owner needs to know it.
--
-- KEYS  1 owner
--
-- Answers {epoch, lease counter, released, worker, machine, for how many milliseconds the worker may be silent}; each is
-- false where it was never written.
-- Refuses WRONGKEYTYPE key.

local function observe(keys)
  local owner = keys[1]
  if wrong_type(owner, 'hash') then return refuse('WRONGKEYTYPE', owner) end
  return redis.call('HMGET', owner, 'epoch', 'lease', 'released', 'worker', 'machine', 'lease_ms')
end

register('observe', observe, {'no-writes'})

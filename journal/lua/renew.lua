-- renew: raise the lease counter of the tenure that holds the partition, however late.
--
-- KEYS  1 owner
-- ARGV  1 epoch · 2 token
--
-- Answers the counter.
-- Refuses FENCED epoch (another tenure, or handed over), WRONGKEYTYPE key.

local function renew(keys, argv)
  local owner = keys[1]
  if wrong_type(owner, 'hash') then return refuse('WRONGKEYTYPE', owner) end
  local held = redis.call('HMGET', owner, 'epoch', 'token')
  if held[1] ~= argv[1] or held[2] ~= argv[2] then return refuse('FENCED', 'epoch ' .. tostring(held[1])) end
  return redis.call('HINCRBY', owner, 'lease', 1)
end

register('renew', renew, {'allow-oom'})

#!lua name=keylane_floor
-- floor_commit: apply one numbered batch of a partition's commits.
--
-- KEYS  1 owner hash (epoch, batch) · 2… the streams and results that the operations name by position
-- ARGV  1 epoch · 2 batch number · 3… operations of four words each, the second the position of a key:
--         a k record delta    append a record and the state that it changed to stream k
--         r k result ms       keep a result under k for ms
--
-- Answers the batch number. Refuses FENCED (another epoch); a batch that was applied before writes nothing.

local function floor_commit(keys, argv)
  local held = redis.call('HMGET', keys[1], 'epoch', 'batch')
  if held[1] ~= argv[1] then return redis.error_reply('FENCED') end
  if held[2] == argv[2] then return tonumber(argv[2]) end
  redis.call('HSET', keys[1], 'batch', argv[2])
  for i = 3, #argv, 4 do
    local key = keys[tonumber(argv[i + 1])]
    if argv[i] == 'a' then
      redis.call('XADD', key, 'MAXLEN', '~', '32', '*', 'r', argv[i + 2], 'd', argv[i + 3])
    else
      redis.call('SET', key, argv[i + 2], 'PX', argv[i + 3])
    end
  end
  return tonumber(argv[2])
end

redis.register_function('floor_commit', floor_commit)

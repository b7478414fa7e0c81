-- recall: what a partition knows of an idempotency key, over the days that it may have been used on.
--
-- KEYS  1 owner · 2… the hashes of the days, newest first
-- ARGV  1 digest of the key
-- Answers {partition time, entry or an empty string, position, position, …}: the positions, counted from 1, of the days
-- looked at that have no hash, so that the owner need not ask for them again.
-- Refuses SCHEMA, WRONGKEYTYPE key.

local function recall(keys, argv)
  local held = redis.call('HMGET', keys[1], 'time', 'offset', 'schema')
  if held[3] ~= SCHEMA then return refuse('SCHEMA', tostring(held[3])) end
  local answer = {partition_time(held[1], held[2]), ''}
  for position = 2, #keys do
    local found = redis.call('TYPE', keys[position])['ok']
    if found == 'none' then
      table.insert(answer, position - 1)
    elseif found ~= 'hash' then
      return refuse('WRONGKEYTYPE', keys[position])
    else
      local entry = redis.call('HGET', keys[position], argv[1])
      if entry then
        answer[2] = entry
        return answer
      end
    end
  end
  return answer
end

register('recall', recall, {'no-writes'})

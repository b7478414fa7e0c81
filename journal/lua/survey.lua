-- survey: what stands under names of one partition, for whoever looks through a whole store.
--
-- KEYS  1… the names
--
-- Answers three words for each name: its type, the milliseconds for which it is kept (-1 for ever, -2 when nothing is
-- there), and how many entries it has where it is a stream.

local function survey(keys)
  local answer = {}
  for position = 1, #keys do
    local kind = redis.call('TYPE', keys[position])['ok']
    table.insert(answer, kind)
    table.insert(answer, redis.call('PTTL', keys[position]))
    table.insert(answer, kind == 'stream' and redis.call('XLEN', keys[position]) or 0)
  end
  return answer
end

register('survey', survey, {'no-writes'})

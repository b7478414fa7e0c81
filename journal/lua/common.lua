-- Shared by every function of the library. The owner hash of a partition holds:
--   schema, partitions   written at first use and never changed
--   epoch, token         the tenure: one period of ownership
--   worker, machine      who holds it;  lease: a counter raised by the holder;  released: "1" after a hand-over
--   before               "batch:serial" of the tenure before, so that an acquisition asked for twice answers the same
--   batch, serial        number and serial of the last batch applied in this tenure
--   time                 the last partition time written, in milliseconds;  offset: the clock's shift, set by tests only
--   a0 … a15             the ring of the last answers, "number:serial:time"

local SCHEMA = '@SCHEMA@'
local RING = 16

-- The partition's time in milliseconds: never earlier than the last one written, whatever the server's clock does.
local function partition_time(last, offset)
  local clock = redis.call('TIME')
  local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + (tonumber(offset) or 0)
  last = tonumber(last) or 0
  if last > now then return last end
  return now
end

local function int(value) return string.format('%.0f', value) end

local function refuse(code, text)
  return redis.error_reply(code .. ' ' .. (text or ''))
end

-- Whether a key is absent or of the wanted type; a foreign key is named and left alone.
local function wrong_type(key, wanted)
  local found = redis.call('TYPE', key)['ok']
  return found ~= 'none' and found ~= wanted
end

-- What scripts see. Called once in an interpreter, with functions of the server; see script.rs.
local host = ...
local pcall, error, type, setmetatable, rawget, next, select = pcall, error, type, setmetatable, rawget, next, select
local ipairs, tonumber, tostring = ipairs, tonumber, tostring

local floor, huge, max = math.floor, math.huge, math.max
local concat, insert, remove, sort = table.concat, table.insert, table.remove, table.sort
local char, find, format, gsub = string.char, string.find, string.format, string.gsub
local match, rep, string_byte, sub = string.match, string.rep, string.byte, string.sub

-- What scripts may read and not change. The functions of `table` that set something ask: they go past the metatables.
local sealed_tables = setmetatable({}, { __mode = "k" })

local function refuse()
  error("Attempt to modify a readonly table", 2)
end

local function sealed(content)
  local outside = setmetatable({}, { __index = content, __newindex = refuse, __metatable = false })
  sealed_tables[outside] = true
  return outside
end

local function unsealed(list)
  if sealed_tables[list] then
    error("Attempt to modify a readonly table", 3)
  end
  return list
end

table.insert = function(list, ...)
  return insert(unsealed(list), ...)
end
table.remove = function(list, ...)
  return remove(unsealed(list), ...)
end
table.sort = function(list, ...)
  return sort(unsealed(list), ...)
end

-- One call could take seconds, or all memory.
string.rep = function(text, count)
  if #text == 0 then
    return ""
  end
  if #text * count > 64 * 1024 * 1024 then
    error("not enough memory", 2)
  end
  return rep(text, count)
end

-- That of C is one for all threads, and for all scripts.
math.randomseed = function() end
math.random = function(low, high)
  local number = host.random()
  if low == nil then
    return number
  end
  if high == nil then
    low, high = 1, low
  end
  if low > high then
    error("bad argument to 'random' (interval is empty)", 2)
  end
  return floor(low) + floor(number * (floor(high) - floor(low) + 1))
end

-- A script whose time is over cannot catch the error that says so.
local function unless_over(...)
  if host.is_over() then
    error(host.over, 0)
  end
  return ...
end

-- What a script catches of a command is the text of its error.
local function caught(is_done, why, ...)
  if not is_done and type(why) == "table" and why.err ~= nil then
    why = why.err
  end
  return is_done, why, ...
end

-- No hook would end a handler that runs before the error has been caught.
local function handled(handler, is_done, ...)
  if is_done then
    return true, ...
  end
  return false, handler(...)
end

local function nothing() end

local major, minor, patch = match(host.version, "^(%d+)%.(%d+)%.(%d+)$")

-- A function that makes a reply of a text, and of anything else an error.
local function of_text(made)
  return function(text)
    if type(text) ~= "string" then
      return { err = "ERR wrong number or type of arguments" }
    end
    return made(text)
  end
end

local redis = {
  REDIS_VERSION = host.version, REDIS_VERSION_NUM = major * 65536 + minor * 256 + patch,
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
  REPL_NONE = 0, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_ALL = 3,
  call = function(...)
    local reply = unless_over(host.call(...))
    if type(reply) == "table" and reply.err then
      error(reply, 0)
    end
    return reply
  end,
  pcall = function(...)
    return unless_over(host.call(...))
  end,
  -- A text of one word has no code.
  error_reply = of_text(function(text)
    if sub(text, 1, 1) == "-" then
      text = sub(text, 2)
    end
    return { err = find(text, " ", 1, true) and text or "ERR " .. text }
  end),
  status_reply = of_text(function(text)
    return { ok = text }
  end),
  sha1hex = host.sha1hex,
  log = nothing,
  set_repl = nothing,
  replicate_commands = function()
    return true
  end,
  setresp = function(version)
    if version ~= 2 then
      error("RESP version must be 2.", 2)
    end
  end,
}

-- JSON, as the library of Redis writes it, except that numbers have all digits that say which they are.
local unescaped = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }
local escapes = {}
for letter, byte in next, unescaped do
  escapes[byte] = "\\" .. letter
end

local function quoted(text)
  return '"' .. gsub(text, '[%c"\\/]', function(byte)
    return escapes[byte] or format("\\u%04x", string_byte(byte))
  end) .. '"'
end

local function digits(number)
  if number ~= number or number == huge or number == -huge then
    error("Cannot serialise number: must not be NaN or Inf", 0)
  end
  for precision = 14, 17 do
    local text = format("%." .. precision .. "g", number)
    if precision == 17 or tonumber(text) == number then
      return text
    end
  end
end

-- The length of a list, or 0 for any other table.
local function length_of(value)
  local longest, count = 0, 0
  for key in next, value do
    if type(key) ~= "number" or key < 1 or key ~= floor(key) then
      return 0
    end
    longest, count = max(longest, key), count + 1
  end
  if longest > 10 and longest > 2 * count then
    error("Cannot serialise table: excessively sparse array", 0)
  end
  return longest
end

local encode_table

-- Appends the text of a value to `parts`.
local function encode(parts, value, depth)
  local kind = type(value)
  if kind == "string" then
    parts[#parts + 1] = quoted(value)
  elseif kind == "number" then
    parts[#parts + 1] = digits(value)
  elseif kind == "boolean" then
    parts[#parts + 1] = tostring(value)
  elseif kind == "nil" or value == host.null then
    parts[#parts + 1] = "null"
  elseif kind ~= "table" then
    error("Cannot serialise " .. kind .. ": type not supported", 0)
  elseif depth > 1000 then
    error("Cannot serialise, excessive nesting (1001)", 0)
  else
    encode_table(parts, value, length_of(value), depth + 1)
  end
end

encode_table = function(parts, value, length, depth)
  if length > 0 then
    for place = 1, length do
      parts[#parts + 1] = place == 1 and "[" or ","
      encode(parts, rawget(value, place), depth)
    end
    parts[#parts + 1] = "]"
    return
  end
  parts[#parts + 1] = "{"
  local is_first = true
  for key, field in next, value do
    if type(key) ~= "string" and type(key) ~= "number" then
      error("Cannot serialise " .. type(key) .. ": table key must be a number or string", 0)
    end
    local name = type(key) == "string" and quoted(key) or '"' .. digits(key) .. '"'
    parts[#parts + 1] = is_first and name or "," .. name
    parts[#parts + 1] = ":"
    encode(parts, field, depth)
    is_first = false
  end
  parts[#parts + 1] = "}"
end

-- The bytes of a character.
local function utf8(code)
  if code < 0x80 then
    return char(code)
  end
  local rest, first = "", 0x80
  for _, limit in ipairs({ 0x20, 0x10, 0x08 }) do
    rest, code, first = char(0x80 + code % 64) .. rest, floor(code / 64), first + limit * 2
    if code < limit then
      break
    end
  end
  return char(first + code) .. rest
end

local literals = { ["true"] = true, ["false"] = false, null = host.null }

local function expected(what, text, at)
  error("Expected " .. what .. " but found " .. (at > #text and "T_END" or "invalid token") .. " at character " .. at, 0)
end

-- The place of the next thing that is not white space.
local function behind_space(text, at)
  return find(text, "[^ \t\n\r]", at) or #text + 1
end

-- The string that begins at a place, and the place behind it.
local function decode_string(text, at)
  local parts, from = {}, at + 1
  while true do
    local stop = find(text, '["\\]', from)
    if not stop then
      error("Expected value but found unexpected end of string at character " .. #text + 1, 0)
    end
    parts[#parts + 1] = sub(text, from, stop - 1)
    if sub(text, stop, stop) == '"' then
      return concat(parts), stop + 1
    end
    local letter = sub(text, stop + 1, stop + 1)
    from = stop + 2
    if letter == "u" then
      local digits, low = match(text, "^(%x%x%x%x)", from), match(text, "^\\u([dD][c-fC-F]%x%x)", from + 4)
      local code = digits and tonumber(digits, 16)
      from = from + 4
      if code and code >= 0xd800 and code < 0xdc00 and low then
        code, from = 0x10000 + (code - 0xd800) * 0x400 + tonumber(low, 16) - 0xdc00, from + 6
      end
      if not code or code >= 0xd800 and code < 0xe000 then
        error("Expected value but found invalid unicode escape code at character " .. stop, 0)
      end
      parts[#parts + 1] = utf8(code)
    else
      parts[#parts + 1] = unescaped[letter] or error("Expected value but found invalid escape code at character " .. stop, 0)
    end
  end
end

-- The value that begins at a place, or behind white space there, and the place behind it.
local function decode(text, at, depth)
  at = behind_space(text, at)
  local first = sub(text, at, at)
  if first == '"' then
    return decode_string(text, at)
  end
  if first ~= "{" and first ~= "[" then
    local word = match(text, "^%l+", at) or match(text, "^-?%d[%d.eE+-]*", at)
    local value = literals[word]
    if value == nil then
      value = word and tonumber(word) or expected("value", text, at)
    end
    return value, at + #word
  end
  if depth > 1000 then
    error("Found too many nested data structures (1001) at character " .. at, 0)
  end
  local is_list, list = first == "[", {}
  local last, what = is_list and "]" or "}", is_list and "comma or array end" or "comma or object end"
  local place = 0
  at = behind_space(text, at + 1)
  if sub(text, at, at) == last then
    return list, at + 1
  end
  repeat
    local key
    if is_list then
      place = place + 1
      key = place
    else
      at = behind_space(text, at)
      if sub(text, at, at) ~= '"' then
        expected("object key string", text, at)
      end
      key, at = decode_string(text, at)
      at = behind_space(text, at)
      if sub(text, at, at) ~= ":" then
        expected("colon", text, at)
      end
      at = at + 1
    end
    list[key], at = decode(text, at, depth + 1)
    at = behind_space(text, at)
    local stop = sub(text, at, at)
    if stop ~= "," and stop ~= last then
      expected(what, text, at)
    end
    at = at + 1
  until stop == last
  return list, at
end

local function decode_all(text)
  local value, at = decode(text, 1, 1)
  at = behind_space(text, at)
  if at <= #text then
    expected("the end", text, at)
  end
  return value
end

-- What a function makes of some values, or its error as one of the caller's caller.
local function or_raise(called, ...)
  local is_done, made = pcall(called, ...)
  if not is_done then
    error(made, 3)
  end
  return made
end

local function text_of(value)
  local parts = {}
  encode(parts, value, 1)
  return concat(parts)
end

local function check_count(name, ...)
  if select("#", ...) ~= 1 then
    error("bad argument #1 to '" .. name .. "' (expected 1 argument)", 3)
  end
end

local cjson = {
  null = host.null,
  encode = function(...)
    check_count("encode", ...)
    return or_raise(text_of, (...))
  end,
  decode = function(...)
    check_count("decode", ...)
    local text = ...
    if type(text) ~= "string" and type(text) ~= "number" then
      error("bad argument #1 to 'decode' (string expected, got " .. type(text) .. ")", 2)
    end
    return or_raise(decode_all, tostring(text))
  end,
}

string.dump = nil
-- It would lead to the library itself.
getmetatable("").__metatable = false

local seen = {
  _VERSION = _VERSION,
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, next = next, pairs = pairs, rawequal = rawequal, rawget = rawget,
  select = select, setmetatable = setmetatable, tonumber = tonumber, tostring = tostring, type = type, unpack = unpack,
  pcall = function(...)
    return unless_over(caught(pcall(...)))
  end,
  xpcall = function(called, handler)
    return handled(handler, unless_over(pcall(called)))
  end,
  string = sealed(string), table = sealed(table), math = sealed(math), redis = sealed(redis), server = sealed(redis), cjson = sealed(cjson),
}

-- Always empty.
local environment = setmetatable({}, {
  __index = function(_, name)
    local value = rawget(seen, name)
    if value == nil then
      error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
    end
    return value
  end,
  __newindex = function(_, name)
    error("Script attempted to create global variable '" .. tostring(name) .. "'", 2)
  end,
  __metatable = false,
})
sealed_tables[environment] = true
seen._G = environment

return seen, environment, pcall

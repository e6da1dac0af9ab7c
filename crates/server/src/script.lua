-- What scripts see. Called once in an interpreter, with functions of the server; see script.rs.
local host = ...
local pcall, error, type, setmetatable, rawget = pcall, error, type, setmetatable, rawget

-- A table that can be read, and not be changed.
local function sealed(content)
  local function refuse()
    error("Attempt to modify a readonly table", 2)
  end
  return setmetatable({}, { __index = content, __newindex = refuse, __metatable = false })
end

-- A script whose time is over cannot catch the error that says so.
local function unless_over(...)
  if host.is_over() then
    error(host.over, 0)
  end
  return ...
end

-- No hook would end a handler that runs before the error has been caught.
local function handled(handler, is_done, ...)
  if is_done then
    return true, ...
  end
  return false, handler(...)
end

local function nothing() end

local redis = {
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
  REPL_NONE = 0, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_ALL = 3,
  call = function(...)
    local reply = host.call(...)
    if type(reply) == "table" and reply.err then
      error(reply, 0)
    end
    return reply
  end,
  pcall = function(...)
    return host.call(...)
  end,
  error_reply = function(text)
    return { err = text }
  end,
  status_reply = function(text)
    return { ok = text }
  end,
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

local cjson = { encode = host.encode, decode = host.decode, null = host.null }

string.dump = nil
-- It would lead to the library itself.
getmetatable("").__metatable = false

local seen = {
  _VERSION = _VERSION,
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, next = next, pairs = pairs, rawequal = rawequal, rawget = rawget,
  select = select, setmetatable = setmetatable, tonumber = tonumber, tostring = tostring, type = type, unpack = unpack,
  pcall = function(...)
    return unless_over(pcall(...))
  end,
  xpcall = function(called, handler)
    return handled(handler, unless_over(pcall(called)))
  end,
  string = sealed(string), table = sealed(table), math = sealed(math), cjson = sealed(cjson), redis = sealed(redis), server = sealed(redis),
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
seen._G = environment

return seen, environment, pcall

# What can stand after the words of the command line: a word a line, and after a tab what it is.
function __rollmill_candidates
    set -l given (commandline -opc)
    set -l asked (string replace -r '.*/' '' -- $given[1])
    set -e given[1]
    if test "$asked" = rollmill
        set asked "$given[1]"
        # Some commands have a word of their own for what they do.
        if set -q given[2]; and __rollmill_table "$given[1] $given[2]" >/dev/null
            set asked "$given[1] $given[2]"
        end
    end
    # After a flag that takes a value, nothing else can stand.
    __rollmill_table "$asked:$given[-1]"; or __rollmill_table "$asked"
end

# The environments beside the working directory.
function __rollmill_own
    for file in resources_servers/*/app.py environments/*/app.py
        string replace -f -r '^[^/]*/([A-Za-z0-9_.-]*)/app.py$' '$1' -- $file
    end
end

# Where there is nothing to offer, and behind a =, files are.
function __rollmill_offers
    string match -q -- '*=*' (commandline -ct); and return 1
    set -l found (__rollmill_candidates)
    test -n "$found"
end

for name in @NAMES@
    complete -c $name -n __rollmill_offers -f -a '(__rollmill_candidates)'
end

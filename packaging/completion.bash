# Completion for the programs of sheaf. Options are those that --help prints, so it cannot be out of date.
_sheaf() {
    local current=${COMP_WORDS[COMP_CWORD]} options
    COMPREPLY=()
    if [[ $current == -* ]]; then
        options=$("${COMP_WORDS[0]}" --help 2>&1 | grep -oE '(^|[ ,[])--?[a-zA-Z][a-z0-9-]*' | tr -d ' ,[')
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -o filenames -F _sheaf sheaf-run sheaf-info sheaf-bench sheaf-comm-bench sheaf-quantize sheaf-make-model sheaf-backend-ops

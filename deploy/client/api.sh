# Functions of Bash for clients of imds-api, with curl and jq (docs/api.md#recipes). Set `url` and `client` first.

sign_in() ( # keeps an access token in the file token; the secret is in provisioning.secret
  umask 077
  curl -fs --retry 9 --retry-connrefused -u $client:$(cat provisioning.secret) -d grant_type=client_credentials $url/token |
    jq -er .access_token > token
)
sign_in_as_server() ( # with the identity token of this server, in place of the secret
  umask 077
  imds=http://169.254.169.254/latest
  session=$(curl -fsX PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $imds/api/token) &&
    assertion=$(curl -fs -H "X-aws-ec2-metadata-token: $session" "$imds/dynamic/instance-identity/token?audience=$url") &&
    curl -fs --retry 9 --retry-connrefused -d grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer -d client_id=$client \
      -d assertion=$assertion $url/token | jq -er .access_token > token
)

send() { # METHOD PATH [OPTION OF CURL...]: prints the body of the final response. Its headers are in the file headers
  local pause answer code after signed_in=
  for pause in 1 2 4 8 16 32 0; do
    answer=$(curl -s -m 150 -o body -D headers -w '%{http_code} %header{retry-after}' -X $1 \
      -H "Authorization: Bearer $(cat token 2> /dev/null)" "${@:3}" "$url/1.0$2") || answer=none # the connection broke
    read -r code after <<< "$answer"
    case $code in
      2??) cat body; return ;;
      401) [ -z "$signed_in" ] && sign_in || return 77; signed_in=yes; continue ;; # the access token has expired
      none | 408 | 429 | 500 | 502 | 503 | 504) ;;
      409) [ -n "$after" ] || break ;; # the first request with this key has not ended
      *) break ;;
    esac
    sleep ${after:-$pause}
  done
  echo "$1 $2: $code $(cat body 2> /dev/null)" >&2
  case $code in none | 408 | 429 | 5??) return 75 ;; 410) return 69 ;; *) return 1 ;; esac
}
get() { send GET "$@"; } # PATH [OPTION OF CURL...]
change() { # KEY METHOD PATH [JSON [OPTION OF CURL...]]: makes a change once, and prints the resource
  send $2 $3 -H "Idempotency-Key: $1" -H 'Content-Type: application/json' ${4:+-d "$4"} "${@:5}"
}
wait_for() { # SERVER STATUS
  get "/servers/$1/wait?status=$2" > /dev/null
}

begin() { # keeps the id of the latest event in the file cursor
  get '/events?after=now' > /dev/null && sed -n 's/^link:.*after=\([^&>]*\).*/\1/Ip' headers > cursor
}
handle() { # EVENT: redefine it
  jq -r .message <<< "$1"
}
follow() { # [SECONDS]: handles the events since the last one; if there are none, waits for one
  local events event
  while :; do
    events=$(get "/events?after=$(cat cursor)${1:+&wait=$1}") || return
    [ "$events" != '[]' ] || return 0
    while read -r event; do
      handle "$event" || return
      jq -r .id <<< "$event" > cursor.new && mv cursor.new cursor
    done < <(jq -c '.[]' <<< "$events")
  done
}
